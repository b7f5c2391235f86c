package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// rules validates the routing rules.
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
		if r.Incoming != "" && r.Incoming != "lo" && v.cfg.createdLink(r.Incoming) == nil {
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

// wholeNetwork validates that a prefix is a network and not an address in a network, and reports
// whether it is valid.
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

// normalRule is a rule in a form that can be compared. As in the kernel, a network of all addresses
// (0.0.0.0/0, ::/0) is the same as no network, except for the family.
type normalRule struct {
	RoutingRule
	ipv4, ipv6 bool // the families of the packets that the rule can match
}

func (r RoutingRule) normal() normalRule {
	n := normalRule{RoutingRule: r, ipv4: true, ipv6: true}
	for _, p := range []*netip.Prefix{&n.From, &n.To} {
		if !p.IsValid() {
			continue
		}
		n.ipv4, n.ipv6 = n.ipv4 && p.Addr().Is4(), n.ipv6 && !p.Addr().Is4()
		if p.Bits() == 0 {
			*p = netip.Prefix{}
		}
	}
	return n
}

// conflicts reports whether two rules have the same priority and different tables, and can match
// the same packet. The kernel would apply the rule that was created first, but the order in which
// the rules are created is not defined.
func (r RoutingRule) conflicts(o RoutingRule) bool {
	a, b := r.normal(), o.normal()
	overlap := func(p, q netip.Prefix) bool { return !p.IsValid() || !q.IsValid() || p.Overlaps(q) }
	return a.Priority == b.Priority && a.Table != b.Table && (a.ipv4 && b.ipv4 || a.ipv6 && b.ipv6) &&
		overlap(a.From, b.From) && overlap(a.To, b.To) &&
		(a.Incoming == "" || b.Incoming == "" || a.Incoming == b.Incoming) && (a.Mark == 0 || b.Mark == 0 || a.Mark == b.Mark)
}
