package coredns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// clusterTTL is how long clients may keep a name of the cluster, seconds. CoreDNS keeps no answer
// about it: what those are made of is in memory anyway.
const clusterTTL = 30

// failover are the answers of a resolver that does not do its work; the next one is asked then.
// That there is no such name is an answer.
const failover = "SERVFAIL REFUSED NOTIMP NOTAUTH FORMERR"

// Corefile returns CoreDNS's configuration: the cluster's zone and the reverse zones from the API
// server, stub domains from their resolvers, other names from the upstream resolvers, or "no such
// name" when there are none. client is the path of a kubeconfig. Pure.
//
// CoreDNS gives a question to the server block with the longest zone that it is in. So that a stub
// domain such as 10.in-addr.arpa leaves the cluster its addresses, the reverse zones of the
// cluster's ranges are zones of the cluster's block. Other addresses are in it too, because an
// endpoint may have one; those without a name in the cluster are looked up outside. That somebody
// outside has no name is not kept: an endpoint may get that address at any time, and the cache is
// asked before the cluster.
//
// Resolvers are asked in their order, as resolv.conf(5) has it: the next one if one does not
// answer, or not with its work done. They are not taken for equal, because the first may know
// names that the others deny.
//
// A name outside does not exist on a machine without resolvers. To say so at once is better than to
// refuse, which clients take for a broken server and ask again.
func Corefile(spec nodespec.Spec, client string, listen []netip.Addr) string {
	dns, reverse := spec.DNS, reverseZones(slices.Concat(spec.PodCIDRs, spec.ServiceCIDRs))
	block := func(zones, plugins string) string {
		return fmt.Sprintf("%s {\n    bind %s\n    errors\n%s}\n", zones, words(listen), plugins)
	}
	forward := func(servers []netip.AddrPort) string {
		return fmt.Sprintf("    forward . %s {\n        max_concurrent 1000\n        policy sequential\n        failover %s\n    }\n", words(servers), failover)
	}
	const balance = "    loadbalance\n" // many clients take the first address
	cache := func(more string) string { return fmt.Sprintf("    cache %d%s\n", dns.CacheTTL, more) }
	every, beyond, found := "    template ANY ANY {\n        rcode NXDOMAIN\n    }\n", "", ""
	if len(dns.Upstreams) > 0 {
		every = balance + cache("") + forward(dns.Upstreams)
		own := strings.Join(reverse, " ")
		beyond = "        fallthrough in-addr.arpa ip6.arpa\n"
		found = fmt.Sprintf("    %s %s\n", rangesName, own) + forward(dns.Upstreams) +
			cache(fmt.Sprintf(" in-addr.arpa ip6.arpa {\n        disable success %s\n        disable denial\n    }", own))
	}
	// A second for the API server: nobody is helped by a DNS that does not listen longer.
	const kubernetes = "    kubernetes %s in-addr.arpa ip6.arpa {\n        kubeconfig %s\n        pods insecure\n" +
		"        ttl %d\n        startup_timeout 1s\n%s    }\n"
	zones := slices.Concat([]string{spec.DNSDomain}, reverse, []string{"in-addr.arpa", "ip6.arpa"})
	cluster := fmt.Sprintf(kubernetes, spec.DNSDomain, client, clusterTTL, beyond)
	out := block(strings.Join(zones, " "), balance+cluster+found) + block(".", every)
	for _, s := range dns.StubDomains {
		out += block(s.Domain, balance+cache("")+forward(s.Servers))
	}
	return out
}

// reverseZones are the zones that hold the names of ranges' addresses: several for a range that
// ends within a label.
func reverseZones(ranges []netip.Prefix) []string {
	var zones []string
	for _, r := range ranges {
		for _, z := range plugin.Host(r.String()).NormalizeExact() {
			zones = append(zones, strings.TrimSuffix(z, "."))
		}
	}
	return zones
}

func words[T fmt.Stringer](list []T) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, " ")
}
