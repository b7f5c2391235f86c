package nodespec

import (
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/pkg/config"
)

// Pool is a set of addresses for Services of type LoadBalancer.
type Pool struct {
	Name   string  `json:"name"`
	Ranges []Range `json:"ranges"` // disjoint from the ranges of all pools
	// whether only Services that request the pool, or an address of it, get its addresses
	OnRequest bool `json:"onRequest"`
	BGP       bool `json:"bgp,omitempty"` // announced by BGP, not by ARP and NDP
}

// AnnouncedBy returns the pools that are announced by BGP, or the pools that are announced by ARP
// and NDP if bgp is false.
func AnnouncedBy(bgp bool, pools []Pool) []Pool {
	return slices.DeleteFunc(slices.Clone(pools), func(p Pool) bool { return p.BGP != bgp })
}

// Range contains the addresses from First to Last. Both have the same family.
type Range struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool { return config.AddressRange(r).Contains(a) }

// Contains reports whether an address is in a range of the pool.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
}
