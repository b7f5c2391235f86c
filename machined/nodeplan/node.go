package nodeplan

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/resolver"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// nodeSpec returns the description of this node for the orchestrator. It fails with ErrNoAddress if
// the machine has no address.
func nodeSpec(c *config.Config, state network.State, release buildinfo.Release) (nodespec.Spec, error) {
	ips := Addresses(c, state)
	if len(ips) == 0 {
		return nodespec.Spec{}, ErrNoAddress
	}
	cluster, kube := c.Cluster.Spec, c.Cluster.Spec.Kubernetes
	r, _ := findResolvers(c, state)
	spec := nodespec.Spec{
		Version:          release.Version,
		Cluster:          c.Cluster.Metadata.Name,
		Endpoint:         cluster.Endpoint.String(),
		ControlPlanes:    cluster.ControlPlanes,
		VirtualAddresses: cluster.VirtualAddresses,
		Node: nodespec.Node{
			Name:           c.Machine.Metadata.Name,
			IPs:            ips,
			ControlPlane:   c.Machine.Spec.Role == config.RoleControlPlane,
			Taint:          c.Machine.Spec.Role == config.RoleControlPlane && !kube.AllowSchedulingOnControlPlane,
			PauseImage:     release.PauseImage,
			ReservedMemory: int64(c.Machine.Spec.Reserved.Memory),
			ReservedCPU:    int64(c.Machine.Spec.Reserved.CPU),
			ReservedCPUs:   string(c.Machine.Spec.Reserved.CPUs),
			ImagePolicy:    c.Machine.Spec.Node.ImagePolicy,
		},
		Network: nodespec.Network{
			PodCIDRs:      cluster.Networks.Pods,
			ServiceCIDRs:  cluster.Networks.Services,
			DNSDomain:     cluster.Networks.Domain,
			Encapsulation: string(cluster.Networks.Encapsulation),
			Pools:         pools(cluster.Networks.LoadBalancer),
			ExternalIPs:   ranges(cluster.Networks.ExternalIPs),
			BGP:           bgp(c.Network.Spec.BGP, ips),
			AnnounceAPI:   cluster.Networks.AnnounceAPI == config.AnnounceBGP,
			Forwarder:     c.Machine.Spec.Egress.Proxy != nil,
		},
		DNS:             clusterDNS(cluster.DNS, c.Network.Spec.DNS.TLS, r),
		External:        nodespec.External{Proxy: cluster.HasExternal(config.PartProxy), DNS: cluster.HasExternal(config.PartDNS), Network: cluster.HasExternal(config.PartNetwork)},
		LocalVolumes:    localVolumes(c),
		Kubernetes:      kube,
		PodCertificates: cluster.PodCertificates.Enabled,
		TokenWebhook:    Access(c, "").TokenWebhook(),
	}
	spec.DNS.NodeUpstreams, spec.DNS.NodeSearch = r.own, state.Search
	for _, services := range cluster.Networks.Services {
		spec.Network.DNSIPs = append(spec.Network.DNSIPs, config.DNSAddress(services))
	}
	// Pods would query the machine's resolvers without TLS, so they use the cluster DNS.
	if c.Network.Spec.DNS.TLS != nil {
		spec.DNS.NodeUpstreams = spec.Network.DNSIPs
	}
	return spec, nil
}

// Settings returns the component settings that only code of Kubernetes can check completely; the
// command `orchestrator check-settings` checks them. It returns nil if all of them have their
// default values. It compares the fields that the Check functions of the components can reject.
func Settings(c *config.Config) *nodespec.Spec {
	parts := func(k config.Kubernetes, r config.Reserved) []any {
		return []any{k.FeatureGates, k.APIServer.Admission, k.Audit.Rules, k.SealedPolicies, k.Kubelet, k.Scheduler, r}
	}
	kube, reserved := c.Cluster.Spec.Kubernetes, c.Machine.Spec.Reserved
	if reflect.DeepEqual(parts(kube, reserved), parts(config.DefaultKubernetes(), config.New("", "").Machine.Spec.Reserved)) {
		return nil
	}
	return &nodespec.Spec{
		Kubernetes: kube,
		Node:       nodespec.Node{ReservedMemory: int64(reserved.Memory), ReservedCPU: int64(reserved.CPU), ReservedCPUs: string(reserved.CPUs)},
	}
}

// StubResolver is the address to which the programs of the machine send DNS queries. machined
// forwards them over TLS. It is the customary loopback address of a local resolver, so no pod and
// no Service can have the same address.
var StubResolver = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 53}), config.PortDNS)

// Resolver returns the resolvers that the machine uses over TLS. The result is empty if c is nil or
// configures no TLS for DNS.
func Resolver(c *config.Config) resolver.Config {
	if c == nil || c.Network.Spec.DNS.TLS == nil {
		return resolver.Config{}
	}
	dns := c.Network.Spec.DNS
	out := resolver.Config{Name: dns.TLS.ServerName, CAs: serverCAs(c, dns.TLS.CA)}
	for _, a := range dns.Servers {
		out.Servers = append(out.Servers, netip.AddrPortFrom(a, resolver.Port))
	}
	return out
}

// TimeSources returns the time servers of the network state, and whether they have to use NTS
// according to the configuration c (nil for none).
func TimeSources(c *config.Config, state network.State) timesync.Sources {
	out := timesync.Sources{Servers: state.TimeServers}
	if c != nil && c.Network.Spec.NTP.NTS != nil {
		out.NTS, out.CAs = true, serverCAs(c, c.Network.Spec.NTP.NTS.CA)
	}
	return out
}

// UnusedResolvers returns one line with the reason for each resolver of the machine that pods do
// not use, and for each configured upstream that the cluster DNS does not use. It returns nil if
// the configuration (nil for none) runs no node.
func UnusedResolvers(c *config.Config, state network.State) []string {
	if c == nil || c.Cluster == nil {
		return nil
	}
	_, unused := findResolvers(c, state)
	return unused
}

// resolvers are the resolvers of a node.
type resolvers struct {
	own       []netip.Addr     // resolvers of the machine, which pods and the cluster DNS use
	upstreams []netip.AddrPort // configured upstreams of the cluster DNS
}

// findResolvers returns the usable resolvers in r. unused has one line with the reason for each
// resolver that is not usable. Resolvers from DHCP can have any address. Configured resolvers were
// checked with the configuration, but DHCP can have assigned the address of such a resolver to this
// machine later.
func findResolvers(c *config.Config, state network.State) (r resolvers, unused []string) {
	spec := c.Cluster.Spec
	local := func(a netip.Addr) error {
		has := func(l network.LinkState) bool {
			return slices.ContainsFunc(l.Addresses, func(own network.AddressState) bool { return own.Prefix.Addr() == a })
		}
		if slices.ContainsFunc(state.Links, has) || slices.Contains(spec.VirtualAddresses, a) {
			return fmt.Errorf("%s is an address of this machine, where no resolver runs", a)
		}
		return nil
	}
	for _, a := range state.Servers {
		err := config.CheckNameServer(a, spec.Networks)
		if err == nil {
			err = local(a)
		}
		if err != nil {
			unused = append(unused, fmt.Sprintf("resolver %s: pods do not use it: %v; configure another one (Network.spec.dns, Cluster.spec.dns)", a, err))
			continue
		}
		r.own = append(r.own, a)
	}
	for _, server := range spec.DNS.Upstreams.AddrPorts() {
		if err := local(server.Addr()); err != nil && server.Port() == config.PortDNS {
			unused = append(unused, fmt.Sprintf("resolver %s: the cluster DNS does not use it: %v; configure another one (Cluster.spec.dns.upstreams)", server.Addr(), err))
			continue
		}
		r.upstreams = append(r.upstreams, server)
	}
	return r, unused
}

// clusterDNS returns the settings of the cluster DNS. Its upstreams are the configured upstreams,
// else the resolvers of the machine. tls is the TLS configuration for the resolvers of the machine;
// nil for none. Configured upstreams do not use it.
func clusterDNS(c config.ClusterDNS, tls *config.DNSTLS, r resolvers) nodespec.DNS {
	dns := nodespec.DNS{Upstreams: r.upstreams, CacheTTL: int(time.Duration(c.CacheTTL) / time.Second)}
	if len(dns.Upstreams) == 0 {
		port := uint16(config.PortDNS)
		if tls != nil {
			port, dns.TLS = resolver.Port, &nodespec.TLS{ServerName: tls.ServerName, CA: tls.CA.PEM()}
		}
		// A network can announce dozens of resolvers, and CoreDNS does not start with that many.
		for _, a := range r.own[:min(len(r.own), config.MaxNameServers)] {
			dns.Upstreams = append(dns.Upstreams, netip.AddrPortFrom(a, port))
		}
	}
	for _, s := range c.StubDomains {
		dns.StubDomains = append(dns.StubDomains, nodespec.StubDomain{Domain: s.Domain, Servers: s.Servers.AddrPorts()})
	}
	return dns
}

// pools converts the address pools for Services to the form of the orchestrator.
func pools(c config.LoadBalancer) []nodespec.Pool {
	var all []nodespec.Pool
	for _, p := range c.Pools {
		all = append(all, nodespec.Pool{Name: p.Name, OnRequest: p.OnRequest, Ranges: ranges(p.Ranges), BGP: p.Announce == config.AnnounceBGP})
	}
	return all
}

func ranges(all []config.AddressRange) []nodespec.Range {
	var out []nodespec.Range
	for _, r := range all {
		out = append(out, nodespec.Range(r))
	}
	return out
}

// Addresses returns the addresses at which other machines reach this machine: at most one for each
// family, IPv4 first.
func Addresses(c *config.Config, state network.State) []netip.Addr {
	if c == nil || c.Cluster == nil {
		return state.NodeAddresses(nil)
	}
	// Other machines connect to the address in ControlPlanes. If this machine has several
	// addresses, NodeAddresses prefers the address in ControlPlanes.
	return state.NodeAddresses(c.Cluster.Spec.ControlPlanes)
}
