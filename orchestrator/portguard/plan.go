package portguard

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Table is the name of the nftables table. Its family is inet.
const Table = "orlop_port_guard"

// Input is the data from which the table of a node is made.
type Input struct {
	Machines []netip.Addr // the addresses of the cluster's machines
	Pods     []netip.Prefix
	// Kubelet says which pods may connect to kubelets. Readers are the addresses of those pods on
	// this node that may connect although the kubelets are closed to pods.
	Kubelet config.Kubelet
	Readers []netip.Addr
}

// family is an address family.
type family struct {
	name, proto, kind string
	is4               bool
}

var families = []family{{"ip", "ipv4", "ipv4_addr", true}, {"ip6", "ipv6", "ipv6_addr", false}}

// Commands returns the commands of nft(8) that create or replace the table in one transaction. The
// order of the addresses in the input has no effect.
//
// The chains of type nat translate a connection to its own destination. After that, no later chain
// of type nat translates the connection, so no Service redirects it. machined/firewall.Guard does
// the same for the machine's own addresses.
func (w Input) Commands() string {
	var b strings.Builder
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", Table)
	for _, f := range families {
		f.set(&b, "machines", w.Machines)
		f.set(&b, "readers", w.Readers)
	}
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&b, "\tchain %[1]s {\n\t\ttype nat hook %[1]s priority -109; policy accept;\n", hook)
		for _, f := range families {
			fmt.Fprintf(&b, "\t\tmeta nfproto %[1]s tcp dport { %[2]s } %[3]s daddr @%[4]s dnat %[3]s to %[3]s daddr\n", f.proto, numbers(nodespec.MachineTCP()), f.name, f.setName("machines"))
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("\tchain forward {\n\t\ttype filter hook forward priority filter - 5; policy accept;\n\t\tct state established,related accept\n")
	for _, f := range families {
		w.closed(&b, f, fmt.Sprintf("%s daddr @%s ", f.name, f.setName("machines")), w.ports(), true)
	}
	b.WriteString("\t}\n\tchain input {\n\t\ttype filter hook input priority filter - 4; policy accept;\n\t\tct state established,related accept\n\t\tiifname \"lo\" accept\n")
	if w.Kubelet.ClosedToPods { // machined has the rules for all other ports of this machine
		for _, f := range families {
			w.closed(&b, f, "", []int{paths.PortKubelet}, false)
		}
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// ports returns the ports of other machines to which pods may not connect.
func (w Input) ports() []int {
	if w.Kubelet.ClosedToPods {
		return append(nodespec.ClosedToPods(), paths.PortKubelet)
	}
	return nodespec.ClosedToPods()
}

// closed writes rules that reject connections of pods to the ports. It matches this node's pods by
// their bridge, and all pods by their addresses. to is a match of the destination, or "". If led is
// true, closed also rejects connections that a Service has redirected.
func (w Input) closed(b *strings.Builder, f family, to string, ports []int, led bool) {
	if w.Kubelet.ClosedToPods && len(w.Readers) > 0 {
		fmt.Fprintf(b, "\t\tiifname %q %s saddr @%s %stcp dport %d accept\n", nodespec.PodBridge, f.name, f.setName("readers"), to, paths.PortKubelet)
	}
	from := []string{fmt.Sprintf("iifname %q meta nfproto %s", nodespec.PodBridge, f.proto)}
	for _, p := range w.Pods {
		if p.Addr().Is4() == f.is4 {
			from = append(from, fmt.Sprintf("%s saddr %s", f.name, p))
		}
	}
	if led {
		from = append(from, "ct status dnat meta nfproto "+f.proto)
	}
	for _, match := range from {
		fmt.Fprintf(b, "\t\t%s %stcp dport { %s } counter reject with tcp reset\n", match, to, numbers(ports))
	}
}

func (f family) setName(what string) string { return what + strings.TrimPrefix(f.proto, "ipv") }

// set writes a set with those addresses that belong to the family, sorted and without duplicates.
func (f family) set(b *strings.Builder, what string, all []netip.Addr) {
	own := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a.Is4() != f.is4 })
	slices.SortFunc(own, netip.Addr.Compare)
	var words []string
	for _, a := range slices.Compact(own) {
		words = append(words, a.String())
	}
	elements := ""
	if len(words) > 0 {
		elements = fmt.Sprintf("elements = { %s }; ", strings.Join(words, ", "))
	}
	fmt.Fprintf(b, "\tset %s { type %s; %s}\n", f.setName(what), f.kind, elements)
}

func numbers(all []int) string {
	var words []string
	for _, n := range all {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ", ")
}
