package config

import (
	"crypto"
	"fmt"
	"net/netip"
)

// fieldNetwork is a network with the path of the field that contains it.
type fieldNetwork struct {
	path string
	net  netip.Prefix
	what string // in messages: the kind of range, or a clause ("the gateway 10.0.0.1 is in")
}

// usable reports whether a range can be compared with others: it was parsed, and its family is
// unambiguous.
func usable(r netip.Prefix) bool { return r.IsValid() && !r.Addr().Is4In6() }

// mapped returns the problem for an IPv4-mapped IPv6 address or network. The family of such an
// address is ambiguous (RFC 4291, 2.5.5.2).
func mapped(at fmt.Stringer) wrong {
	return wrong{reason: fmt.Sprintf("%s is an IPv4 address written as IPv6", at), expected: "one or the other"}
}

// isHost reports whether an address can be that of a machine on another link: global unicast, not
// IPv4-mapped, and without a zone.
func isHost(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" }

// crossValidator checks values of different documents against each other.
type crossValidator struct {
	*report
	cfg *Config
}

// authorities checks that all CAs and the service-account key have different keys. If two CAs had
// the same key, a certificate of the first CA would be accepted wherever the second CA is trusted.
// For example, a Kubernetes client could write to etcd, or impersonate any user through the front
// proxy.
func (v crossValidator) authorities() {
	type holder struct {
		path string
		key  crypto.PublicKey
	}
	var all []holder
	for i, ca := range v.cfg.Machine.Spec.Trust.OperatorCAs {
		if !ca.IsZero() {
			all = append(all, holder{fmt.Sprintf("Machine.spec.trust.operatorCAs[%d]", i), ca.X509().PublicKey})
		}
	}
	const path = "Cluster.spec.pki"
	pki := &v.cfg.Cluster.Spec.PKI
	add := func(h holder) {
		for _, other := range all {
			if samePublic(h.key, other.key) {
				v.on(h.path, wrong{reason: "the same key as in " + other.path, expected: "a separate key", hint: "otherwise each CA could issue certificates of the other"})
				return
			}
		}
		all = append(all, h)
	}
	for _, a := range pki.authorities() {
		if !a.pair.Cert.IsZero() {
			add(holder{path + "." + a.name + ".cert", a.pair.Cert.X509().PublicKey})
		}
	}
	for _, a := range pki.authorities() {
		for i, c := range a.accepted {
			if !c.IsZero() {
				add(holder{acceptedPath(path, a.name, i), c.X509().PublicKey})
			}
		}
	}
	if signer := pki.ServiceAccountKey.Signer(); signer != nil {
		add(holder{path + ".serviceAccountKey", signer.Public()})
	}
}

// overlaps checks that no range of the cluster overlaps another range, or a network or address
// outside the cluster. With an overlap, the route of a packet would be ambiguous.
func (v crossValidator) overlaps() {
	inside := clusterRanges(&v.cfg.Cluster.Spec.Networks)
	for i, r := range inside {
		for _, other := range inside[:i] {
			if r.what != other.what && r.net.Overlaps(other.net) {
				v.on(r.path, wrong{reason: fmt.Sprintf("%s overlaps the %s %s", r.net, other.what, other.net), expected: "ranges without common addresses"})
			}
		}
	}
	for _, own := range v.ownAddresses() {
		for _, r := range inside {
			if r.net.Overlaps(own.net) {
				v.on(own.path, wrong{reason: fmt.Sprintf("%s the %s %s", own.what, r.what, r.net), expected: "an address outside the cluster's ranges"})
			}
		}
	}
}

// clusterRanges returns the ranges of pods and Services.
func clusterRanges(n *ClusterNetworks) []fieldNetwork {
	const path = "Cluster.spec.networks"
	var all []fieldNetwork
	for i, r := range n.Pods {
		if at := fmt.Sprintf("%s.pods[%d]", path, i); usable(r) {
			all = append(all, fieldNetwork{at, r, "pod range"})
		}
	}
	for i, r := range n.Services {
		if at := fmt.Sprintf("%s.services[%d]", path, i); usable(r) {
			all = append(all, fieldNetwork{at, r, "service range"})
		}
	}
	return all
}

// ownAddresses returns the networks of the machine's links, and the addresses of otherAddresses.
func (v crossValidator) ownAddresses() []fieldNetwork {
	var all []fieldNetwork
	for i, l := range v.cfg.Network.Spec.Links {
		for j, a := range l.Addresses {
			if usable(a) {
				all = append(all, fieldNetwork{fmt.Sprintf("Network.spec.links[%d].addresses[%d]", i, j), a.Masked(), fmt.Sprintf("the link's network %s overlaps", a.Masked())})
			}
		}
	}
	return append(all, v.otherAddresses()...)
}

// otherAddresses returns the addresses outside the cluster's ranges that the documents name:
// gateways, resolvers, and the addresses of control-plane machines and of the Kubernetes API.
func (v crossValidator) otherAddresses() []fieldNetwork {
	var all []fieldNetwork
	add := func(path, what string, a netip.Addr) {
		if a.IsValid() && !a.Is4In6() {
			all = append(all, singleAddress(path, what, a))
		}
	}
	spec := &v.cfg.Network.Spec
	for i, l := range spec.Links {
		for j, r := range l.Routes {
			add(fmt.Sprintf("Network.spec.links[%d].routes[%d].via", i, j), "the gateway", r.Via)
		}
	}
	for i, s := range spec.DNS.Servers {
		add(fmt.Sprintf("Network.spec.dns.servers[%d]", i), "the resolver", s)
	}
	add("Cluster.spec.endpoint", "the endpoint", v.cfg.Cluster.Spec.Endpoint.Addr())
	for i, a := range v.cfg.Cluster.Spec.ControlPlanes {
		add(fmt.Sprintf("Cluster.spec.controlPlanes[%d]", i), "the control-plane machine's address", a)
	}
	for i, a := range v.cfg.Cluster.Spec.VirtualAddresses {
		add(fmt.Sprintf("Cluster.spec.virtualAddresses[%d]", i), "the virtual address", a)
	}
	return all
}

// singleAddress returns an address as a network of a single address, with the path of its field.
func singleAddress(path, what string, a netip.Addr) fieldNetwork {
	return fieldNetwork{path, netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf("%s %s is in", what, a)}
}

// inPools checks that no address pool and no range in externalIPs contains an address of this
// machine or of otherAddresses.
func (v crossValidator) inPools() {
	spec := &v.cfg.Cluster.Spec
	taken := v.otherAddresses()
	for i, l := range v.cfg.Network.Spec.Links {
		for j, a := range l.Addresses {
			if usable(a) {
				at := fmt.Sprintf("Network.spec.links[%d].addresses[%d]", i, j)
				taken = append(taken, singleAddress(at, "the machine's address", a.Addr()))
			}
		}
	}
	check := func(r AddressRange, of, outside string) {
		for _, own := range taken {
			if r.First.IsValid() && r.Contains(own.net.Addr()) {
				v.on(own.path, wrong{reason: fmt.Sprintf("%s the range %s of %s", own.what, r, of), expected: "an address outside " + outside})
			}
		}
	}
	for _, pool := range spec.Networks.LoadBalancer.Pools {
		for _, r := range pool.Ranges {
			check(r, "the pool "+quote(pool.Name), "the pools for Services")
		}
	}
	for _, r := range spec.Networks.ExternalIPs {
		check(r, "Cluster.spec.networks.externalIPs", "these ranges")
	}
}
