package dhcp6

import (
	"net/netip"
	"slices"
	"time"
)

// Lease has the addresses, prefixes and settings that a server has granted, or only settings. It is
// immutable. Its JSON form is stored on disk.
type Lease struct {
	Server    string    `json:"server"`              // DUID of the server, in hexadecimal
	Addresses []Address `json:"addresses,omitempty"` // addresses of the IA_NA
	Prefixes  []Prefix  `json:"prefixes,omitempty"`  // prefixes of the IA_PD
	// time at which the request was sent; all durations start at it
	Acquired time.Time `json:"acquired"`
	// T1 is the time until renewal, T2 the time until rebinding. For a lease with settings only, T1
	// is the time until the next request.
	T1 time.Duration `json:"t1"`
	T2 time.Duration `json:"t2"`

	DNS    []netip.Addr `json:"dns,omitempty"`    // option 23
	Search []string     `json:"search,omitempty"` // option 24
	NTP    []string     `json:"ntp,omitempty"`    // option 56, else 31: addresses or names
}

// Address is a leased address.
type Address struct {
	Addr      netip.Addr    `json:"address"`
	Preferred time.Duration `json:"preferred"`
	Valid     time.Duration `json:"valid"`
}

// Prefix is a delegated prefix.
type Prefix struct {
	Prefix    netip.Prefix  `json:"prefix"`
	Preferred time.Duration `json:"preferred"`
	Valid     time.Duration `json:"valid"`
}

// Forever is a duration without an end (RFC 8415 section 7.7: 0xffffffff seconds).
const Forever = 0xffffffff * time.Second

// stateless reports whether the lease has settings only.
func (l *Lease) stateless() bool { return len(l.Addresses)+len(l.Prefixes) == 0 }

// Expires returns the time at which the last address or prefix ends. It returns the zero time if
// this address or prefix never ends, or if the lease has settings only.
func (l *Lease) Expires() time.Time {
	longest := time.Duration(0)
	for _, d := range l.valid() {
		longest = max(longest, d)
	}
	if longest == Forever || l.stateless() {
		return time.Time{}
	}
	return l.Acquired.Add(longest)
}

// valid returns the valid lifetimes of all addresses and prefixes.
func (l *Lease) valid() (out []time.Duration) {
	for _, a := range l.Addresses {
		out = append(out, a.Valid)
	}
	for _, p := range l.Prefixes {
		out = append(out, p.Valid)
	}
	return out
}

// expired reports whether all addresses and prefixes have ended. It returns false for a lease with
// settings only.
func (l *Lease) expired(now time.Time) bool {
	return !l.Expires().IsZero() && !now.Before(l.Expires())
}

// next returns the time at which the first address or prefix ends; the zero time if none ends.
func (l *Lease) next() time.Time {
	shortest := Forever
	for _, d := range l.valid() {
		shortest = min(shortest, d)
	}
	if shortest == Forever {
		return time.Time{}
	}
	return l.Acquired.Add(shortest)
}

// alive returns a copy of the lease without the addresses and prefixes that have ended. It returns
// l itself if all are valid.
func (l *Lease) alive(now time.Time) *Lease {
	ended := func(valid time.Duration) bool { return valid != Forever && !now.Before(l.Acquired.Add(valid)) }
	if !slices.ContainsFunc(l.valid(), ended) {
		return l
	}
	out := *l
	out.Addresses = slices.DeleteFunc(slices.Clone(l.Addresses), func(a Address) bool { return ended(a.Valid) })
	out.Prefixes = slices.DeleteFunc(slices.Clone(l.Prefixes), func(p Prefix) bool { return ended(p.Valid) })
	return &out
}

// Has reports whether the lease contains an address.
func (l *Lease) Has(a netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(o Address) bool { return o.Addr == a })
}
