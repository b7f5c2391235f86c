package nodeplan

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// nodeSpec describes this node for the orchestrator. It returns ErrNoAddress if the machine has
// no address.
func nodeSpec(c *config.Config, state network.State, r buildinfo.Release) (nodespec.Spec, error) {
	ips := Addresses(c, state)
	if len(ips) == 0 {
		return nodespec.Spec{}, ErrNoAddress
	}
	cluster, kube := c.Cluster.Spec, c.Cluster.Spec.Kubernetes
	own, _ := resolvers(cluster.Networks, state.Servers)
	spec := nodespec.Spec{
		Version:          r.Version,
		Cluster:          c.Cluster.Metadata.Name,
		Endpoint:         cluster.Endpoint.String(),
		ControlPlanes:    cluster.ControlPlanes,
		VirtualAddresses: cluster.VirtualAddresses,
		Node: nodespec.Node{
			Name:           c.Machine.Metadata.Name,
			IPs:            ips,
			ControlPlane:   c.Machine.Spec.Role == config.RoleControlPlane,
			Taint:          c.Machine.Spec.Role == config.RoleControlPlane && !kube.AllowSchedulingOnControlPlane,
			PauseImage:     r.PauseImage,
			ReservedMemory: int64(c.Machine.Spec.Reserved.Memory),
			ReservedCPU:    int64(c.Machine.Spec.Reserved.CPU),
		},
		Network: nodespec.Network{
			PodCIDRs:      cluster.Networks.Pods,
			ServiceCIDRs:  cluster.Networks.Services,
			DNSDomain:     cluster.Networks.Domain,
			Encapsulation: string(cluster.Networks.Encapsulation),
			Pools:         pools(cluster.Networks.LoadBalancer),
			ExternalIPs:   ranges(cluster.Networks.ExternalIPs),
		},
		DNS:             clusterDNS(cluster.DNS, own),
		External:        nodespec.External{Proxy: cluster.HasExternal(config.PartProxy), DNS: cluster.HasExternal(config.PartDNS), Network: cluster.HasExternal(config.PartNetwork)},
		LocalVolumes:    nodespec.LocalVolumes{Disabled: !cluster.LocalVolumes.Enabled, Reserve: int64(cluster.LocalVolumes.Reserve)},
		Kubernetes:      kube,
		PodCertificates: cluster.PodCertificates.Enabled,
		TokenWebhook:    Access(c.Cluster).TokenWebhook(),
	}
	spec.DNS.NodeUpstreams, spec.DNS.NodeSearch = own, state.Search
	for _, r := range cluster.Networks.Services {
		spec.Network.DNSIPs = append(spec.Network.DNSIPs, config.DNSAddress(r))
	}
	return spec, nil
}

// UnusedResolvers returns the resolvers of the machine that pods do not use, one line each; none if
// its configuration (nil for none) runs no node.
func UnusedResolvers(c *config.Config, state network.State) []string {
	if c == nil || c.Cluster == nil {
		return nil
	}
	_, unused := resolvers(c.Cluster.Spec.Networks, state.Servers)
	return unused
}

// resolvers returns the resolvers of the machine that pods and the cluster DNS can use, and the
// reason for each of the others. A resolver from DHCP can be any address; configured resolvers were
// checked.
func resolvers(n config.ClusterNetworks, all []netip.Addr) (usable []netip.Addr, unused []string) {
	for _, a := range all {
		if err := config.CheckNameServer(a, n); err != nil {
			unused = append(unused, fmt.Sprintf("resolver %s: pods do not use it: %v; configure another one (Network.spec.dns, Cluster.spec.dns)", a, err))
			continue
		}
		usable = append(usable, a)
	}
	return usable, unused
}

// clusterDNS returns the upstreams of the cluster DNS: the configured upstreams, else the resolvers
// of the machine.
func clusterDNS(c config.ClusterDNS, own []netip.Addr) nodespec.DNS {
	dns := nodespec.DNS{Upstreams: c.Upstreams.AddrPorts(), CacheTTL: int(time.Duration(c.CacheTTL) / time.Second)}
	if len(dns.Upstreams) == 0 {
		// a network may announce dozens, and CoreDNS does not start with more
		for _, a := range own[:min(len(own), config.MaxNameServers)] {
			dns.Upstreams = append(dns.Upstreams, netip.AddrPortFrom(a, config.PortDNS))
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
		all = append(all, nodespec.Pool{Name: p.Name, OnRequest: p.OnRequest, Ranges: ranges(p.Ranges)})
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
