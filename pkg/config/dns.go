package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ClusterDNS configures how the cluster's DNS resolves names outside the cluster. Each machine runs
// its own instance of the DNS.
type ClusterDNS struct {
	Upstreams   NameServers  `yaml:"upstreams,omitempty"`
	StubDomains []StubDomain `yaml:"stubDomains,omitempty"`
	CacheTTL    Duration     `yaml:"cacheTTL" limits:"whole seconds, 1s to 1h"`
}

// StubDomain is a DNS domain with its own resolvers.
type StubDomain struct {
	Domain  string      `yaml:"domain" jsonschema:"required"`
	Servers NameServers `yaml:"servers" jsonschema:"required"`
}

// NameServers is a list of resolvers.
type NameServers []NameServer

// AddrPorts returns the addresses with their ports.
func (n NameServers) AddrPorts() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range n {
		out = append(out, netip.AddrPort(s))
	}
	return out
}

// PortDNS is the default port of a resolver, UDP and TCP (RFC 1035, 4.2).
const PortDNS = 53

// NameServer is the address of a resolver with its port. The zero value means no resolver.
type NameServer netip.AddrPort

const wantNameServer = "an IP address with an optional port, such as 10.0.0.2, 10.0.0.2:5353 or [2001:db8::2]:5353"

// UnmarshalText parses an address, or an address with a port; an IPv6 address with a port must be
// in brackets.
func (n *NameServer) UnmarshalText(text []byte) error {
	s := string(text)
	if a, err := netip.ParseAddr(s); err == nil {
		*n = NameServer(netip.AddrPortFrom(a, PortDNS))
		return nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return &wrong{reason: quote(s) + " is not the address of a resolver", expected: wantNameServer}
	}
	if a.Port() == 0 {
		return &wrong{reason: "the port 0 is not in 1 to 65535", expected: wantNameServer}
	}
	*n = NameServer(a)
	return nil
}

// String returns the address, with the port if it is not 53.
func (n NameServer) String() string {
	a := netip.AddrPort(n)
	switch {
	case !a.IsValid():
		return ""
	case a.Port() == PortDNS:
		return a.Addr().String()
	}
	return a.String()
}

// MarshalText returns String.
func (n NameServer) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// These limits are higher than practical clusters need. They bound the number of resolvers that
// CoreDNS checks and that operators have to read.
const (
	MaxNameServers = 8 // CoreDNS accepts 15 (plugin/forward)
	maxStubDomains = 64
)

// dnsValidator checks the resolvers of the cluster DNS.
type dnsValidator struct {
	checks
	cfg      *Config
	networks *ClusterNetworks
}

func (v dnsValidator) clusterDNS(path string, dns *ClusterDNS) {
	v.nameServers(path+".upstreams", dns.Upstreams)
	if len(dns.StubDomains) > maxStubDomains {
		v.on(path+".stubDomains", wrong{reason: fmt.Sprintf("%d domains", len(dns.StubDomains)), expected: fmt.Sprintf("at most %d", maxStubDomains)})
	}
	seen := map[string]int{}
	for i, s := range dns.StubDomains {
		at := fmt.Sprintf("%s.stubDomains[%d]", path, i)
		v.stubDomain(at+".domain", s.Domain)
		v.unique(at+".domain", "stubDomains", s.Domain, i, seen)
		if len(s.Servers) == 0 && s.Servers != nil {
			v.on(at+".servers", wrong{reason: "is empty", expected: "at least one resolver"})
		}
		v.nameServers(at+".servers", s.Servers)
	}
}

// stubDomain checks that the DNS domain and the cluster have no names in common. CoreDNS sends a
// query to the resolvers of the longest matching domain, so a domain inside the cluster's domain
// would take queries from the cluster.
func (v dnsValidator) stubDomain(path, domain string) {
	n := v.networks
	if domain == "" {
		return
	}
	if err := hostname(domain); err != nil {
		w := wrong{reason: fmt.Sprintf("%s %v", quote(domain), err), expected: "a DNS domain in lower case, such as corp.example"}
		if guess := strings.Trim(strings.ToLower(domain), "."); hostname(guess) == nil {
			w.nearest = guess
		}
		if domain == "." {
			w.hint = "use upstreams for resolvers of all names"
		}
		v.on(path, w)
		return
	}
	const expected = "a domain outside the cluster"
	switch {
	case domain == "in-addr.arpa" || domain == "ip6.arpa":
		v.on(path, wrong{
			reason: quote(domain) + " contains every address, including the cluster's", expected: "the reverse zone of a network, such as 168.192.in-addr.arpa",
		})
	case domain == n.Domain:
		v.on(path, wrong{reason: quote(domain) + " is the cluster's own domain", expected: expected})
	case strings.HasSuffix(domain, "."+n.Domain):
		v.on(path, wrong{reason: fmt.Sprintf("%s is below the cluster's own domain %s", quote(domain), n.Domain), expected: expected})
	case strings.HasSuffix(n.Domain, "."+domain):
		v.on(path, wrong{reason: fmt.Sprintf("%s is above the cluster's own domain %s", quote(domain), n.Domain), expected: expected})
	}
	zone, ok := reverseZone(domain)
	if !ok {
		return
	}
	for _, r := range slices.Concat(n.Pods, n.Services) {
		if usable(r) && zone.Bits() >= r.Bits() && r.Contains(zone.Addr()) {
			v.on(path, wrong{
				reason:   fmt.Sprintf("%s is the cluster's own range %s, or a part of it", quote(domain), r),
				expected: "a range outside the cluster, or a larger one",
			})
		}
	}
}

// reverseZone returns the network of a reverse zone, which is a domain below in-addr.arpa (RFC
// 1035, 3.5) or ip6.arpa (RFC 3596, 2.5).
func reverseZone(domain string) (netip.Prefix, bool) {
	base, bits, width := 10, 8, 4
	rest, ok := strings.CutSuffix(domain, ".in-addr.arpa")
	if !ok {
		base, bits, width = 16, 4, 32
		if rest, ok = strings.CutSuffix(domain, ".ip6.arpa"); !ok {
			return netip.Prefix{}, false
		}
	}
	labels := strings.Split(rest, ".")
	if len(labels) > width {
		return netip.Prefix{}, false
	}
	address := make([]byte, width*bits/8)
	slices.Reverse(labels)
	for i, label := range labels {
		part, err := strconv.ParseUint(label, base, bits)
		if err != nil {
			return netip.Prefix{}, false
		}
		at := i * bits
		address[at/8] |= byte(part) << (8 - bits - at%8)
	}
	a, ok := netip.AddrFromSlice(address)
	return netip.PrefixFrom(a, len(labels)*bits), ok
}

// nameServers rejects addresses at which no resolver can run, and addresses at which the cluster's
// DNS would query itself. Queries to such addresses would fail only after their timeout.
func (v dnsValidator) nameServers(path string, list NameServers) {
	n := v.networks
	if len(list) > MaxNameServers {
		v.on(path, wrong{reason: fmt.Sprintf("%d servers", len(list)), expected: fmt.Sprintf("at most %d", MaxNameServers)})
	}
	seen := map[string]int{}
	for i, server := range list {
		at, a := fmt.Sprintf("%s[%d]", path, i), netip.AddrPort(server).Addr()
		if !a.IsValid() {
			continue
		}
		v.unique(at, path[strings.LastIndexByte(path, '.')+1:], server.String(), i, seen)
		if w := resolverProblem(a); w != nil {
			v.on(at, *w)
		}
		if field := v.cfg.machineAddress(a); field != "" && netip.AddrPort(server).Port() == PortDNS {
			v.on(at, wrong{reason: fmt.Sprintf("%s is an address of a machine of the cluster (%s), where no resolver runs", a, field), expected: "another resolver"})
		}
		for _, r := range n.Services {
			if usable(r) && DNSAddress(r) == a {
				v.on(at, wrong{reason: fmt.Sprintf("%s is the cluster's DNS, which would query itself", a), expected: "another resolver"})
			}
		}
		for _, r := range n.Pods {
			if usable(r) && r.Contains(a) {
				v.on(at, wrong{
					reason:   fmt.Sprintf("%s is in the pod range %s: a pod address is not permanent, and a machine's address in it is the cluster's DNS", a, r),
					expected: "a resolver outside the cluster, or the address of a Service",
				})
			}
		}
	}
}

// ownAddress returns the field that assigns an address to this machine; "" if there is none.
func (c *Config) ownAddress(a netip.Addr) string {
	for i, l := range c.Network.Spec.Links {
		for j, own := range l.Addresses {
			if own.IsValid() && own.Addr() == a {
				return fmt.Sprintf("Network.spec.links[%d].addresses[%d]", i, j)
			}
		}
	}
	return ""
}

// machineAddress returns the field that assigns an address to a machine of the cluster, or to its
// Kubernetes API; "" if there is none.
func (c *Config) machineAddress(a netip.Addr) string {
	if i := slices.Index(c.Cluster.Spec.ControlPlanes, a); i >= 0 {
		return fmt.Sprintf("Cluster.spec.controlPlanes[%d]", i)
	}
	if i := slices.Index(c.Cluster.Spec.VirtualAddresses, a); i >= 0 {
		return fmt.Sprintf("Cluster.spec.virtualAddresses[%d]", i)
	}
	return c.ownAddress(a)
}

// resolverProblem returns the reason why an address cannot belong to a resolver; nil if it can. It
// rejects link-local addresses because CoreDNS ignores the zone of an address.
func resolverProblem(a netip.Addr) *wrong {
	if w := serverProblem(a); w != nil {
		w.expected = "the address of a resolver"
		return w
	}
	if a.Zone() != "" || a.Is6() && a.IsLinkLocalUnicast() {
		return &wrong{
			reason:   fmt.Sprintf("%s is a link-local address, and the cluster's DNS does not support zones", a),
			expected: "an address of the resolver that every machine can reach",
		}
	}
	return nil
}

// serverProblem returns the reason why an address cannot belong to another machine; nil if it can.
func serverProblem(a netip.Addr) *wrong {
	switch {
	case a.IsLoopback() || a.Is4In6() && a.Unmap().IsLoopback():
		return &wrong{reason: fmt.Sprintf("%s is a loopback address, where no server runs", a)}
	case a.IsUnspecified() || a.IsMulticast() || a.Is4In6() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return &wrong{reason: fmt.Sprintf("%s cannot be a server", a)}
	}
	return nil
}

// CheckNameServer returns an error if the cluster's DNS cannot use the address of a resolver that
// the network names (DHCP). The reason is that no resolver can have the address, or that the
// address is in a range of the cluster, in which the cluster's DNS could query itself.
func CheckNameServer(a netip.Addr, n ClusterNetworks) error {
	if w := resolverProblem(a); w != nil {
		return errors.New(w.reason)
	}
	for _, r := range slices.Concat(n.Pods, n.Services) {
		if usable(r) && r.Contains(a) {
			return fmt.Errorf("%s is in the cluster's own range %s", a, r)
		}
	}
	return nil
}

// DNSAddress returns the address of the cluster's DNS: the tenth address of a service range.
func DNSAddress(r netip.Prefix) netip.Addr {
	a := r.Masked().Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}
