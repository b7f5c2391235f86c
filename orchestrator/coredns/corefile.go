package coredns

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// clusterTTL is the TTL of the cluster's names, in seconds. CoreDNS does not cache these answers:
// their data are in memory anyway.
const clusterTTL = 30

// failover are the response codes after which the next resolver is used. NXDOMAIN is not among
// them, because it is an answer.
const failover = "SERVFAIL REFUSED NOTIMP NOTAUTH FORMERR"

// Corefile returns the configuration of CoreDNS. The names of the cluster's zone and of the reverse
// zones come from the API server. The names of a stub domain come from its resolvers, and all other
// names from the upstream resolvers; without upstream resolvers, the answer is NXDOMAIN. client is
// the path of a kubeconfig. The function is pure.
//
// CoreDNS assigns a query to the server block with the longest matching zone. The reverse zones of
// the cluster's ranges are zones of the cluster's block, so that a stub domain such as
// 10.in-addr.arpa does not take over the cluster's addresses. The reverse zones of all other
// addresses are in this block, too, because an endpoint may have any address; queries for addresses
// without a name in the cluster are forwarded. If an external resolver denies a name for an
// address, the denial is not cached: an endpoint may get that address at any time, and the cache
// answers before the cluster's data.
//
// Resolvers are used in their order, as specified by resolv.conf(5): a resolver gets a query only
// if the resolvers before it fail or do not answer. The order matters, because the first resolver
// may know names that the others deny.
//
// On a machine without resolvers, the answer for an external name is NXDOMAIN. After REFUSED,
// clients would retry, because they would regard the server as broken.
func Corefile(spec nodespec.Spec, client string, listen []netip.Addr) string {
	dns, reverse := spec.DNS, reverseZones(slices.Concat(spec.Network.PodCIDRs, spec.Network.ServiceCIDRs))
	block := func(zones, plugins string) string {
		return fmt.Sprintf("%s {\n    bind %s\n    errors\n%s}\n", zones, join(listen), plugins)
	}
	const forwarder = "    forward . %s {\n%s        max_concurrent 1000\n        policy sequential\n        failover %s\n    }\n"
	forward := func(servers []netip.AddrPort) string { return fmt.Sprintf(forwarder, join(servers), "", failover) }
	upstreams := func() string { return forward(dns.Upstreams) }
	if dns.TLS != nil {
		upstreams = func() string {
			return fmt.Sprintf(forwarder, "tls://"+strings.Join(words(dns.Upstreams), " tls://"), tlsOptions(*dns.TLS, filepath.Dir(client)), failover)
		}
	}
	const balance = "    loadbalance\n" // many clients use only the first address
	cache := func(more string) string { return fmt.Sprintf("    cache %d%s\n", dns.CacheTTL, more) }
	external, passOn, forwardReverse := "    template ANY ANY {\n        rcode NXDOMAIN\n    }\n", "", ""
	if len(dns.Upstreams) > 0 {
		external = balance + cache("") + upstreams()
		own := strings.Join(reverse, " ")
		passOn = "        fallthrough in-addr.arpa ip6.arpa\n"
		forwardReverse = fmt.Sprintf("    %s %s\n", rangesName, own) + upstreams() +
			cache(fmt.Sprintf(" in-addr.arpa ip6.arpa {\n        disable success %s\n        disable denial\n    }", own))
	}
	// CoreDNS waits a second for the API server before it listens. A longer wait helps no client.
	const kubernetes = "    kubernetes %s in-addr.arpa ip6.arpa {\n        kubeconfig %s\n        pods insecure\n" +
		"        ttl %d\n        startup_timeout 1s\n%s    }\n"
	zones := slices.Concat([]string{spec.Network.DNSDomain}, reverse, []string{"in-addr.arpa", "ip6.arpa"})
	cluster := fmt.Sprintf(kubernetes, spec.Network.DNSDomain, client, clusterTTL, passOn)
	out := block(strings.Join(zones, " "), balance+cluster+forwardReverse) + block(".", external)
	for _, s := range dns.StubDomains {
		out += block(s.Domain, balance+cache("")+forward(s.Servers))
	}
	return out
}

// reverseZones returns the reverse zones of ranges: several for a range that ends within a label.
func reverseZones(ranges []netip.Prefix) []string {
	var zones []string
	for _, r := range ranges {
		for _, z := range plugin.Host(r.String()).NormalizeExact() {
			zones = append(zones, strings.TrimSuffix(z, "."))
		}
	}
	return zones
}

// resolverCA is the name of the file with the CAs of resolvers, in the directory of the kubeconfig.
const resolverCA = "resolver-ca.crt"

// tlsOptions returns the options for TLS of the plugin forward. If t has no name, the certificates
// must be for the addresses of the resolvers. dir is the directory of the file resolverCA.
func tlsOptions(t nodespec.TLS, dir string) string {
	out := "        tls\n"
	if t.CA != "" {
		out = fmt.Sprintf("        tls %s\n", filepath.Join(dir, resolverCA))
	}
	if t.ServerName != "" {
		out += fmt.Sprintf("        tls_servername %s\n", t.ServerName)
	}
	return out
}

func join[T fmt.Stringer](list []T) string { return strings.Join(words(list), " ") }

func words[T fmt.Stringer](list []T) (out []string) {
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
