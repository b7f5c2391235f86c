package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// rules validates the rules.
func (v networkValidator) rules(spec string, all []RoutingRule) {
	for i, r := range all {
		at := fmt.Sprintf("%s.rules[%d]", spec, i)
		if !v.broken[at+".table"] && r.Table == 0 {
			v.on(at+".table", wrong{reason: "table 0 does not exist", expected: "a table with routes, or 254 for the main table"})
		}
		v.wholeNetwork(at+".from", r.From)
		v.wholeNetwork(at+".to", r.To)
		if r.From.IsValid() && r.To.IsValid() && r.From.Addr().Is4() != r.To.Addr().Is4() {
			v.on(at+".to", wrong{reason: fmt.Sprintf("%s is not of the family of %s", r.To, r.From), expected: "two networks of the same family"})
		}
		if r.Incoming != "" && r.Incoming != "lo" && v.cfg.defined(r.Incoming) == nil {
			v.linkName(at+".incoming", r.Incoming, "")
			v.noPattern(at+".incoming", r.Incoming)
		}
		if slices.ContainsFunc(all[:i], func(o RoutingRule) bool { return o.normal() == r.normal() }) {
			v.on(at, wrong{reason: "the same rule is given twice"})
		} else if j := slices.IndexFunc(all[:i], r.conflicts); j >= 0 {
			v.on(at+".priority", wrong{reason: fmt.Sprintf("the same priority as rules[%d] with another table, and a packet can match both", j), expected: "another priority: the first rule decides"})
		}
	}
}

// wholeNetwork validates a network that packets have to match, and reports whether it is valid.
func (v networkValidator) wholeNetwork(path string, n netip.Prefix) bool {
	switch {
	case !n.IsValid():
	case n.Addr().Is4In6():
		v.on(path, mapped(n.Addr()))
	case n != n.Masked():
		v.on(path, wrong{reason: fmt.Sprintf("%s is an address in a network", n), expected: "a network", nearest: n.Masked().String()})
	default:
		return true
	}
	return false
}

// normalRule is a rule as the kernel has it: a network of all addresses is no condition.
type normalRule struct {
	RoutingRule
	four, six bool // the families of the rule
}

func (r RoutingRule) normal() normalRule {
	n := normalRule{RoutingRule: r, four: true, six: true}
	for _, p := range []*netip.Prefix{&n.From, &n.To} {
		if !p.IsValid() {
			continue
		}
		n.four, n.six = n.four && p.Addr().Is4(), n.six && !p.Addr().Is4()
		if p.Bits() == 0 {
			*p = netip.Prefix{}
		}
	}
	return n
}

// conflicts reports whether the order of two rules decides about a packet, and the priority does
// not give the order: the kernel then uses the order of their creation.
func (r RoutingRule) conflicts(o RoutingRule) bool {
	a, b := r.normal(), o.normal()
	overlap := func(p, q netip.Prefix) bool { return !p.IsValid() || !q.IsValid() || p.Overlaps(q) }
	return a.Priority == b.Priority && a.Table != b.Table && (a.four && b.four || a.six && b.six) &&
		overlap(a.From, b.From) && overlap(a.To, b.To) &&
		(a.Incoming == "" || b.Incoming == "" || a.Incoming == b.Incoming) && (a.Mark == 0 || b.Mark == 0 || a.Mark == b.Mark)
}
