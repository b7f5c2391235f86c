package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
)

// Table is the name of the table, of the inet family.
const Table = "orlop_firewall"

// Config is what is let in, beside what always is (see rules).
type Config struct {
	Open []Rule // each port once per protocol
	// MachineNetworks are the TCP ports of the system itself, at least one, which Open alone has a say in.
	MachineNetworks []int
}

// Rule lets networks reach a port. From without any is everybody.
type Rule struct {
	Protocol string // "tcp" or "udp"
	Port     int
	From     []netip.Prefix
}

// String is "let in tcp port 9100 from 10.0.0.0/8".
func (r Rule) String() string {
	from := "everybody"
	if len(r.From) > 0 {
		from = list(r.From)
	}
	return fmt.Sprintf("let in %s port %d from %s", r.Protocol, r.Port, from)
}

// Allow lets more in by rules. One for a port that is open to everybody has it open to its networks
// alone, and to own: the cluster's control-plane machines.
func Allow(open, rules []Rule, own []netip.Prefix) []Rule {
	out := slices.Clone(open)
	for _, r := range rules {
		at := slices.IndexFunc(out, func(o Rule) bool { return o.Port == r.Port && o.Protocol == r.Protocol })
		switch {
		case at < 0:
			out = append(out, r)
		case len(out[at].From) == 0:
			out[at].From = slices.Concat(r.From, own)
		default:
			out[at].From = slices.Concat(r.From, out[at].From)
		}
	}
	return out
}

// Lines says what is let in, for people; none for no firewall.
func (c *Config) Lines() []string {
	if c == nil {
		return nil
	}
	var out []string
	for _, r := range c.Open {
		out = append(out, r.String())
	}
	return append(out, "refuse everything else that others begin")
}

// Absent are the commands that leave no firewall, whatever there was.
const Absent = "add table inet " + Table + "\ndelete table inet " + Table + "\n"

// DropElement are the commands for a machine whose firewall the kernel does not take: nobody begins
// anything with it but callers of its own API, at the TCP port given, so that the operator can.
// They need as little of the kernel as can be, and use the same table.
func DropElement(port int) string {
	return fmt.Sprintf(Absent+`table inet %s {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established,related accept
		iifname "lo" accept
		meta l4proto { icmp, ipv6-icmp } accept
		meta nfproto ipv4 udp dport 68 accept
		ip6 saddr fe80::/10 udp dport 546 accept
		tcp dport %d accept
	}
}
`, Table, port)
}

// Commands are the commands of nft(8), one transaction, that bring the firewall about; without one
// those that leave none. pods is the link over which the machine's own pods come. Those of other
// machines come as their machines (they are masqueraded); what comes to the machine itself by a
// tunnel was sent by somebody who means to go round the rules.
func (c *Config) Commands(pods string) string {
	if c == nil {
		return Absent
	}
	var b strings.Builder
	b.WriteString(Absent)
	fmt.Fprintf(&b, "table inet %s {\n\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n", Table)
	rule := func(format string, a ...any) { fmt.Fprintf(&b, "\t\t"+format+"\n", a...) }
	rule("ct state established,related accept")
	rule("iifname { \"lo\", %q } accept", pods)
	rule("meta l4proto { icmp, ipv6-icmp } accept")
	// What a Service has rewritten to a pod that shares the machine's network. The API server has a
	// Service, too, and a virtual address; who may come to it by those is who may come to its port.
	rule("ct status dnat tcp dport != { %s } accept", numbers(c.MachineNetworks))
	rule("ct status dnat meta l4proto != tcp accept")
	// A server's answer is not the answer of a connection: it may come from another address than
	// was asked (RFC 2131, 4.1; RFC 8415, 7.2).
	rule("meta nfproto ipv4 udp dport 68 accept")
	rule("ip6 saddr fe80::/10 udp dport 546 accept")
	for _, r := range c.Open {
		to := fmt.Sprintf("%s dport %d accept", r.Protocol, r.Port)
		if len(r.From) == 0 {
			rule("%s", to)
		}
		senders(r.From, func(match string) { rule("%s %s", match, to) })
	}
	// as where nothing listens: who has mistaken the port is told at once
	rule("meta l4proto tcp counter reject with tcp reset")
	rule("counter")
	b.WriteString("\t}\n}\n")
	return b.String()
}

// senders calls do with what matches the networks of each family that there are.
func senders(from []netip.Prefix, do func(match string)) {
	for _, family := range []struct {
		name string
		is4  bool
	}{{"ip", true}, {"ip6", false}} {
		var b netipx.IPSetBuilder // nft takes no address twice in a set
		for _, p := range from {
			if p.Addr().Is4() == family.is4 {
				b.AddPrefix(p)
			}
		}
		// it fails for prefixes that are none, and those were refused with the document
		set, _ := b.IPSet()
		own := set.Prefixes()
		switch {
		case len(own) == 0:
		case own[0].Bits() == 0: // nft takes a range of everything for a mistake
			do("meta nfproto " + map[bool]string{true: "ipv4", false: "ipv6"}[family.is4])
		default:
			do(fmt.Sprintf("%s saddr { %s }", family.name, list(own)))
		}
	}
}

func list(all []netip.Prefix) string {
	var out []string
	for _, p := range all {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}

func numbers(all []int) string {
	var out []string
	for _, n := range all {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ", ")
}
