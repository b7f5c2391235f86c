package firewall

import (
	"fmt"
	"net/netip"
	"strings"
)

// GuardTable is the name of the inet table that keeps the machine's own ports from Services and
// pods.
const GuardTable = "orlop_machine_ports"

// guardPriority is the priority of the chains that decide about a connection before the service
// proxy and the host-port plugin, which both have dstnat, -100
// (k8s.io/kubernetes/pkg/proxy/nftables; containernetworking/plugins, portmap).
const guardPriority = -110

// Guard lists the ports that no Service and no pod may take from the machine. It applies to every
// machine, with and without Network.spec.firewall.
type Guard struct {
	TCP []int // protected TCP ports on the machine's own addresses
	UDP []int // protected UDP ports on the machine's own addresses
	// TCP ports that are protected on loopback addresses, too
	Loopback []int
	Closed   []int          // TCP ports that pods must not reach
	Pods     []netip.Prefix // pod ranges of the cluster
}

// Commands returns the commands of nft(8), a single transaction, that install the guard. pods is
// the link to the pods of this machine.
//
// For a connection to a port of the machine, the guard requests a translation to the destination
// that the connection has already. After a translation, the kernel evaluates no later nat chain for
// the connection (nf_nat_inet_fn in net/netfilter/nf_nat_core.c), so the rules of a Service or pod
// there have no effect.
func (g Guard) Commands(pods string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", GuardTable)
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&b, "\tchain %[1]s {\n\t\ttype nat hook %[1]s priority %[2]d; policy accept;\n", hook, guardPriority)
		for _, f := range []struct{ proto, family string }{{"ipv4", "ip"}, {"ipv6", "ip6"}} {
			keep := func(protocol string, ports []int) {
				fmt.Fprintf(&b, "\t\tmeta nfproto %s %s dport { %s } fib daddr type local dnat %[4]s to %[4]s daddr\n", f.proto, protocol, numbers(ports), f.family)
			}
			keep("tcp", append(append([]int{}, g.TCP...), g.Loopback...))
			keep("udp", g.UDP)
		}
		b.WriteString("\t}\n")
	}
	// This chain runs before the chain of the firewall, which accepts all packets from the link of
	// the pods.
	fmt.Fprintf(&b, "\tchain input {\n\t\ttype filter hook input priority filter - 5; policy accept;\n\t\tiifname \"lo\" accept\n")
	closed := fmt.Sprintf("tcp dport { %s } counter reject with tcp reset", numbers(g.Closed))
	fmt.Fprintf(&b, "\t\tiifname %q %s\n", pods, closed)
	// Traffic of pods of other machines has an address of the pod range of that machine: the
	// address of the pod or, if the traffic was masqueraded into a tunnel, the address of the
	// tunnel end.
	senders(g.Pods, func(match string) { fmt.Fprintf(&b, "\t\t%s %s\n", match, closed) })
	b.WriteString("\t}\n}\n")
	return b.String()
}
