package nodespec

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
)

// Reserved states two sets of addresses: those that Services must not use for access from outside
// the cluster, and those that Services may use as external IPs. The service proxy of every machine
// rewrites packets to the external addresses of Services. So a Service with the address of a
// machine would receive the traffic to the ports of that machine.
type Reserved struct {
	// addresses of the control-plane machines and of this machine, virtual addresses, and the
	// endpoint
	Machines []netip.Addr   `json:"machines"`
	Networks []netip.Prefix `json:"networks"` // ranges of pods and of Services
	External []Range        `json:"external"` // Network.ExternalIPs
}

// Reserved returns the reserved addresses of the specification. The addresses of Nodes change, so
// the methods get them as an argument. Extra addresses in the certificate of the API server are not
// reserved, because they may belong to a Service in front of the API servers.
func (s Spec) Reserved() Reserved {
	machines := slices.Concat(s.Node.IPs, s.ControlPlanes, s.VirtualAddresses)
	if u, err := url.Parse(s.Endpoint); err == nil {
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			machines = append(machines, a)
		}
	}
	slices.SortFunc(machines, netip.Addr.Compare)
	return Reserved{Machines: slices.Compact(machines), Networks: slices.Concat(s.Network.PodCIDRs, s.Network.ServiceCIDRs), External: s.Network.ExternalIPs}
}

// Check returns why no Service may use an address for access from outside the cluster. It returns
// an empty string for a permitted address. nodes are the addresses of the Nodes of the cluster.
func (r Reserved) Check(a netip.Addr, nodes []netip.Addr) string {
	a = a.Unmap()
	switch {
	case !a.IsGlobalUnicast():
		return "it is not the address of one machine in a network"
	case slices.Contains(r.Machines, a):
		return "it is an address of a control-plane machine or of the API"
	case slices.Contains(nodes, a):
		return "it is the address of a Node"
	}
	for _, n := range r.Networks {
		if n.Contains(a) {
			return fmt.Sprintf("it is in %s, which is for pods or Services inside the cluster", n)
		}
	}
	return ""
}

// CheckExternal returns why no Service may have an address in its field externalIPs. It returns an
// empty string for a permitted address. nodes are the addresses of the Nodes of the cluster.
func (r Reserved) CheckExternal(a netip.Addr, nodes []netip.Addr) string {
	a = a.Unmap()
	if why := r.Check(a, nodes); why != "" {
		return why
	}
	if !slices.ContainsFunc(r.External, func(o Range) bool { return o.Contains(a) }) {
		return "no range of Cluster.spec.networks.externalIPs holds it"
	}
	return ""
}
