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

// nodeSpec describes this node for the orchestrator. It returns ErrNoAddress if the machine has
// no address.
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
	if c.Network.Spec.DNS.TLS != nil { // a pod would query the machine's resolvers without TLS
		spec.DNS.NodeUpstreams = spec.Network.DNSIPs
	}
	return spec, nil
}

// Settings returns the settings of components that only the code of Kubernetes can check
// completely, for `orchestrator check-settings`; nil if all of them are the defaults. The compared
// fields are those that the Check functions of the components can reject.
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

// StubResolver is where the programs of the machine send queries that it forwards over TLS. It is
// the customary address of a local resolver, which no pod and no Service can have.
var StubResolver = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 53}), config.PortDNS)

// Resolver returns the resolvers over TLS of a configuration (nil for none).
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

// TimeSources returns the time servers of a configuration (nil for none) and of the network.
func TimeSources(c *config.Config, state network.State) timesync.Sources {
	out := timesync.Sources{Servers: state.TimeServers}
	if c != nil && c.Network.Spec.NTP.NTS != nil {
		out.NTS, out.CAs = true, serverCAs(c, c.Network.Spec.NTP.NTS.CA)
	}
	return out
}

// UnusedResolvers returns the resolvers of the machine that pods do not use, and the configured
// resolvers that the cluster DNS does not use, one line each; none if its configuration (nil for
// none) runs no node.
func UnusedResolvers(c *config.Config, state network.State) []string {
	if c == nil || c.Cluster == nil {
		return nil
	}
	_, unused := findResolvers(c, state)
	return unused
}

// resolvers are the resolvers of a node.
type resolvers struct {
	own       []netip.Addr     // of the machine, for pods and the cluster DNS
	upstreams []netip.AddrPort // configured, for the cluster DNS
}

// findResolvers returns the usable resolvers, and the reason for each of the others, one line each.
// A resolver from DHCP can be any address. Configured resolvers were checked, but the machine can
// have another address by now, for example by DHCP.
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

// clusterDNS returns the upstreams of the cluster DNS: the configured upstreams, else the resolvers
// of the machine, with their TLS (nil for none).
func clusterDNS(c config.ClusterDNS, tls *config.DNSTLS, r resolvers) nodespec.DNS {
	dns := nodespec.DNS{Upstreams: r.upstreams, CacheTTL: int(time.Duration(c.CacheTTL) / time.Second)}
	if len(dns.Upstreams) == 0 {
		port := uint16(config.PortDNS)
		if tls != nil {
			port, dns.TLS = resolver.Port, &nodespec.TLS{ServerName: tls.ServerName, CA: tls.CA.PEM()}
		}
		// a network may announce dozens, and CoreDNS does not start with more
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

// Addresses returns the machine's addresses that other machines can reach, one per family, IPv4
// first.
func Addresses(c *config.Config, state network.State) []netip.Addr {
	if c == nil || c.Cluster == nil {
		return state.NodeAddresses(nil)
	}
	// the other machines use the configured address
	return state.NodeAddresses(c.Cluster.Spec.ControlPlanes)
}
