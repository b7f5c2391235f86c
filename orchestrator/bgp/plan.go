package bgp

import (
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/orchestrator/l2announcer"
)

// View is the input of Plan.
type View struct {
	Self   string // the name of the Node of this machine
	BootID string // of the running kernel
	// Nodes and Services describe the objects in the API server. A Service has only its addresses
	// from pools for BGP here.
	Nodes    []l2announcer.Node
	Services []l2announcer.Service
	API      []netip.Addr // virtual addresses of the API that this machine serves
}

// Plan returns the host routes that the machine announces, in order, each once.
func Plan(v View) []netip.Prefix {
	addresses := slices.Clone(v.API)
	for _, s := range v.Services {
		if v.suitable(s) {
			addresses = append(addresses, s.Addresses...)
		}
	}
	routes := []netip.Prefix{}
	for _, a := range addresses {
		routes = append(routes, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(routes, netip.Prefix.Compare)
	return slices.Compact(routes)
}

// suitable reports whether this machine can serve a Service. A cordoned machine is about to leave,
// so it is suitable only if all other able machines are cordoned, too.
func (v View) suitable(s l2announcer.Service) bool {
	able := func(n l2announcer.Node) bool {
		return n.Ready && !n.Excluded && (!s.Local || slices.Contains(s.Endpoints, n.Name))
	}
	own := slices.IndexFunc(v.Nodes, func(n l2announcer.Node) bool { return n.Name == v.Self })
	// The status of an earlier boot says nothing about the present boot: its service proxy may not
	// work yet.
	if own < 0 || v.Nodes[own].BootID != v.BootID || !able(v.Nodes[own]) {
		return false
	}
	return !v.Nodes[own].Cordoned || !slices.ContainsFunc(v.Nodes, func(n l2announcer.Node) bool { return able(n) && !n.Cordoned })
}
