package firewall

import (
	"fmt"
	"net/netip"
	"strings"
)

// GuardTable is the name of the table that keeps Services and pods from the machine's own ports, of
// the inet family.
const GuardTable = "orlop_guard"

// beforeServices is the priority of the chains that decide about a connection before the service
// proxy and the plugin for host ports do, which both have dstnat, -100
// (k8s.io/kubernetes/pkg/proxy/nftables; containernetworking/plugins, portmap).
const beforeServices = -110

// Guard is what no Service and no pod takes of the machine. It holds on every machine, with
// Network.spec.firewall and without.
type Guard struct {
	TCP []int // ports on the machine's own addresses that stay the machine's
	UDP []int // the same
	// TCP ports that stay the machine's on its own addresses, loopback's included
	Loopback []int
	Closed   []int          // TCP ports that pods do not reach
	Pods     []netip.Prefix // the cluster's pod ranges
}

// Commands are the commands of nft(8), one transaction, that bring the guard about. pods is the
// link over which the machine's own pods come.
//
// A connection to one of the machine's ports gets its translation here: its own destination. The
// kernel then asks no later chain of the type nat about it (nf_nat_inet_fn in
// net/netfilter/nf_nat_core.c), whatever a Service or a pod has put there.
func (g Guard) Commands(pods string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", GuardTable)
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&b, "\tchain %[1]s {\n\t\ttype nat hook %[1]s priority %[2]d; policy accept;\n", hook, beforeServices)
		for _, f := range []struct{ proto, family string }{{"ipv4", "ip"}, {"ipv6", "ip6"}} {
			keep := func(protocol string, ports []int) {
				fmt.Fprintf(&b, "\t\tmeta nfproto %s %s dport { %s } fib daddr type local dnat %[4]s to %[4]s daddr\n", f.proto, protocol, numbers(ports), f.family)
			}
			keep("tcp", append(append([]int{}, g.TCP...), g.Loopback...))
			keep("udp", g.UDP)
		}
		b.WriteString("\t}\n")
	}
	// Before the firewall's chain, which lets the pods' link in.
	fmt.Fprintf(&b, "\tchain input {\n\t\ttype filter hook input priority filter - 5; policy accept;\n\t\tiifname \"lo\" accept\n")
	closed := fmt.Sprintf("tcp dport { %s } counter reject with tcp reset", numbers(g.Closed))
	fmt.Fprintf(&b, "\t\tiifname %q %s\n", pods, closed)
	// Pods of other machines come with their own address where they are not masqueraded, and what
	// is masqueraded into a tunnel with the address of the other machine's end of it, which is of
	// its pod range.
	senders(g.Pods, func(match string) { fmt.Fprintf(&b, "\t\t%s %s\n", match, closed) })
	b.WriteString("\t}\n}\n")
	return b.String()
}
