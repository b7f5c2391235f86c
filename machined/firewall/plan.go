package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
)

// Table is the name of the inet table.
const Table = "orlop_firewall"

// Config lists the accepted connections, in addition to the fixed rules in Commands.
type Config struct {
	Open []Rule // each port once per protocol
	// SystemPorts are the TCP ports of the system itself; not empty. Only rules in Open accept
	// connections to these ports.
	SystemPorts []int
}

// Rule lets networks reach a port. An empty From means all networks.
type Rule struct {
	Protocol string // "tcp" or "udp"
	Port     int
	From     []netip.Prefix
}

// String is "accept tcp port 9100 from 10.0.0.0/8".
func (r Rule) String() string {
	from := "all networks"
	if len(r.From) > 0 {
		from = list(r.From)
	}
	return fmt.Sprintf("accept %s port %d from %s", r.Protocol, r.Port, from)
}

// Allow adds rules to open. If open admits only some networks to a port, a rule adds its networks.
// If open admits all networks, a rule restricts the port to the networks of the rule and to
// controlPlanes, the cluster's control-plane machines.
func Allow(open, rules []Rule, controlPlanes []netip.Prefix) []Rule {
	out := slices.Clone(open)
	for _, r := range rules {
		at := slices.IndexFunc(out, func(o Rule) bool { return o.Port == r.Port && o.Protocol == r.Protocol })
		switch {
		case at < 0:
			out = append(out, r)
		case len(out[at].From) == 0:
			out[at].From = slices.Concat(r.From, controlPlanes)
		default:
			out[at].From = slices.Concat(r.From, out[at].From)
		}
	}
	return out
}

// Lines describes the firewall for the operator; it is empty without a firewall.
func (c *Config) Lines() []string {
	if c == nil {
		return nil
	}
	var out []string
	for _, r := range c.Open {
		out = append(out, r.String())
	}
	return append(out, "reject all other new connections")
}

// Absent are the commands that remove the firewall, if there is a firewall.
const Absent = "add table inet " + Table + "\ndelete table inet " + Table + "\n"

// APIOnly returns the commands for a machine with a kernel that rejects the firewall. They drop all
// new connections, except connections to the machine's API at the TCP port, through which the
// operator can act. They need as few kernel features as possible, and use the same table as
// Commands.
func APIOnly(port int) string {
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

// Commands returns the commands of nft(8), a single transaction, that install the firewall, or
// remove it if c is nil. pods is the link to the pods of this machine, which is accepted. Traffic
// from pods of other machines has the addresses of these machines (masquerading). Traffic that
// arrives through a tunnel for the machine itself is not accepted, because it is an attempt to
// bypass the rules.
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
	// Traffic that a Service rewrites to a pod on the host network. The API server also has a
	// Service and a virtual address; the rules of its port decide about both.
	rule("ct status dnat tcp dport != { %s } accept", numbers(c.SystemPorts))
	rule("ct status dnat meta l4proto != tcp accept")
	// The answer of a DHCP server does not belong to a connection: it may come from another address
	// than that of the request (RFC 2131, 4.1; RFC 8415, 7.2).
	rule("meta nfproto ipv4 udp dport 68 accept")
	rule("ip6 saddr fe80::/10 udp dport 546 accept")
	for _, r := range c.Open {
		to := fmt.Sprintf("%s dport %d accept", r.Protocol, r.Port)
		if len(r.From) == 0 {
			rule("%s", to)
		}
		senders(r.From, func(match string) { rule("%s %s", match, to) })
	}
	// a reset, as for a closed port: the client then gets an error at once
	rule("meta l4proto tcp counter reject with tcp reset")
	rule("counter")
	b.WriteString("\t}\n}\n")
	return b.String()
}

// senders calls `do` once for each address family that occurs in `from`, with a match for the
// networks of that family.
func senders(from []netip.Prefix, do func(match string)) {
	for _, family := range []struct {
		name string
		is4  bool
	}{{"ip", true}, {"ip6", false}} {
		var b netipx.IPSetBuilder // nft rejects overlapping addresses in a set
		for _, p := range from {
			if p.Addr().Is4() == family.is4 {
				b.AddPrefix(p)
			}
		}
		// IPSet fails only for invalid prefixes, which the validation of the document rejects
		set, _ := b.IPSet()
		prefixes := set.Prefixes()
		switch {
		case len(prefixes) == 0:
		case prefixes[0].Bits() == 0: // nft rejects a range that covers all addresses
			do("meta nfproto " + map[bool]string{true: "ipv4", false: "ipv6"}[family.is4])
		default:
			do(fmt.Sprintf("%s saddr { %s }", family.name, list(prefixes)))
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
