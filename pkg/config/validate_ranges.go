package config

import (
	"fmt"
	"net/netip"
)

// placed is a network with the path of its field.
type placed struct {
	path string
	net  netip.Prefix
	what string // for own addresses with the verb before the range
}

// usable reports whether a range was parsed and can be compared.
func usable(r netip.Prefix) bool { return r.IsValid() && !r.Addr().Is4In6() }

// mapped returns the error for an IPv4-mapped IPv6 address or network: its family is ambiguous (RFC
// 4291, 2.5.5.2).
func mapped(at fmt.Stringer) wrong {
	return wrong{reason: fmt.Sprintf("%s is an IPv4 address written as IPv6", at), expected: "one or the other"}
}

// overlaps checks that the cluster's ranges and the machine's own networks have no common
// addresses: the route of a packet would be ambiguous.
func (p *parser) overlaps() {
	inside := p.clusterRanges()
	for i, r := range inside {
		for _, other := range inside[:i] {
			if r.what != other.what && r.net.Overlaps(other.net) {
				p.on(r.path, wrong{reason: fmt.Sprintf("%s overlaps the %s %s", r.net, other.what, other.net), expected: "ranges without common addresses"})
			}
		}
	}
	for _, own := range p.ownAddresses() {
		for _, r := range inside {
			if r.net.Overlaps(own.net) {
				p.on(own.path, wrong{reason: fmt.Sprintf("%s the %s %s", own.what, r.what, r.net), expected: "an address outside the cluster's ranges"})
			}
		}
	}
}

func (p *parser) clusterRanges() []placed {
	n := &p.cfg.Cluster.Spec.Networks
	const path = "Cluster.spec.networks"
	var all []placed
	for i, r := range n.Pods {
		if at := fmt.Sprintf("%s.pods[%d]", path, i); usable(r) {
			all = append(all, placed{at, r, "pod range"})
		}
	}
	for i, r := range n.Services {
		if at := fmt.Sprintf("%s.services[%d]", path, i); usable(r) {
			all = append(all, placed{at, r, "service range"})
		}
	}
	return all
}

// ownAddresses returns the networks of the links, and the addresses that must be reachable outside
// the cluster.
func (p *parser) ownAddresses() []placed {
	var all []placed
	for i, l := range p.cfg.Network.Spec.Links {
		for j, a := range l.Addresses {
			if usable(a) {
				all = append(all, placed{fmt.Sprintf("Network.spec.links[%d].addresses[%d]", i, j), a.Masked(), fmt.Sprintf("the link's network %s overlaps", a.Masked())})
			}
		}
	}
	return append(all, p.otherAddresses()...)
}

// otherAddresses returns the addresses outside the cluster that the documents contain.
func (p *parser) otherAddresses() []placed {
	var all []placed
	add := func(path, what string, a netip.Addr) {
		if a.IsValid() && !a.Is4In6() {
			all = append(all, single(path, what, a))
		}
	}
	spec := &p.cfg.Network.Spec
	for i, l := range spec.Links {
		for j, r := range l.Routes {
			add(fmt.Sprintf("Network.spec.links[%d].routes[%d].via", i, j), "the gateway", r.Via)
		}
	}
	for i, s := range spec.DNS.Servers {
		add(fmt.Sprintf("Network.spec.dns.servers[%d]", i), "the resolver", s)
	}
	add("Cluster.spec.endpoint", "the endpoint", p.cfg.Cluster.Spec.Endpoint.Addr())
	for i, a := range p.cfg.Cluster.Spec.ControlPlanes {
		add(fmt.Sprintf("Cluster.spec.controlPlanes[%d]", i), "the control-plane machine's address", a)
	}
	for i, a := range p.cfg.Cluster.Spec.VirtualAddresses {
		add(fmt.Sprintf("Cluster.spec.virtualAddresses[%d]", i), "the virtual address", a)
	}
	return all
}

// single returns an address with the path of its field.
func single(path, what string, a netip.Addr) placed {
	return placed{path, netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf("%s %s is in", what, a)}
}
