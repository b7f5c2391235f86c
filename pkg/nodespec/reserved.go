package nodespec

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
)

// Reserved are the addresses at which no Service may be reached from outside, and those that a
// Service may name as external ones. The service proxy of every machine rewrites what is sent to a
// Service's external address, so a Service that had a machine's address would take the machine's
// own ports.
type Reserved struct {
	// of the control plane, this machine's own, virtual ones, and the endpoint's
	Machines []netip.Addr   `json:"machines"`
	Networks []netip.Prefix `json:"networks"` // of pods and of Services
	External []Range        `json:"external"` // see Spec.ExternalIPs
}

// Reserved returns what the specification knows. The addresses of Nodes come and go, and are given
// to Why. Further addresses that the API server's certificate holds are not among them: one may be
// a Service's that leads to API servers.
func (s Spec) Reserved() Reserved {
	machines := slices.Concat(s.NodeIPs, s.ControlPlanes, s.VirtualAddresses)
	if u, err := url.Parse(s.Endpoint); err == nil {
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			machines = append(machines, a)
		}
	}
	slices.SortFunc(machines, netip.Addr.Compare)
	return Reserved{Machines: slices.Compact(machines), Networks: slices.Concat(s.PodCIDRs, s.ServiceCIDRs), External: s.ExternalIPs}
}

// Check says why no Service may be reached from outside at an address; empty: one may. nodes are the
// addresses of the cluster's Nodes.
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

// CheckExternal says why no Service may name an address in its field externalIPs; empty: one may.
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
