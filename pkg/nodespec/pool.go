package nodespec

import (
	"net/netip"
	"slices"
)

// Pool is a number of addresses for Services of type LoadBalancer.
type Pool struct {
	Name   string  `json:"name"`
	Ranges []Range `json:"ranges"` // no two of any pools overlap
	// only for Services that ask for the pool, or for an address of it
	OnRequest bool `json:"onRequest"`
}

// Range is the addresses from First to Last, of one family.
type Range struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// Contains says that an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Contains says that an address is in one of the pool's ranges.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
}
