package config

import (
	"fmt"
	"math/big"
	"net/netip"
	"strings"
)

// LoadBalancer says which addresses Services of type LoadBalancer get.
type LoadBalancer struct {
	// Pools are where the addresses come from, the first one that has a free one. Without pools
	// such Services wait for something else in the cluster to serve them, and nothing of this runs:
	// give Services that have an address another type before the last pool goes.
	Pools []AddressPool `yaml:"pools,omitempty"`
}

// AddressPool is a number of addresses for Services. The machines answer for those that are in use,
// by ARP and NDP, so they belong to the machines' own network, and nobody else has them.
type AddressPool struct {
	// Name is what a Service asks for with the annotation orlop.dev/pool: a DNS label.
	Name string `yaml:"name" jsonschema:"required"`
	// Ranges are the addresses, each a network or the first and the last address with a dash
	// between, at most 65536 in each. All of them are given out, the first and last of a network
	// too.
	Ranges []AddressRange `yaml:"ranges" jsonschema:"required"`
	// OnRequest keeps the pool for Services that ask for it, or for an address of it. False gives
	// its addresses to every Service.
	OnRequest bool `yaml:"onRequest"`
}

// AddressRange is the addresses from First to Last, of one family. It is written as a network or as
// first-last.
type AddressRange struct{ First, Last netip.Addr }

const wantAddressRange = "a network or first-last, such as 192.0.2.64/27 or 192.0.2.100-192.0.2.120"

// UnmarshalText reads a range.
func (r *AddressRange) UnmarshalText(text []byte) error {
	s := string(text)
	from, to, dash := strings.Cut(s, "-")
	if !dash {
		p, err := netip.ParsePrefix(s)
		switch _, single := netip.ParseAddr(s); {
		case single == nil:
			return &wrong{reason: fmt.Sprintf("%s has no prefix length", quote(s)), expected: wantAddressRange, nearest: s + "-" + s}
		case err != nil:
			return &wrong{reason: fmt.Sprintf("%s is not a range of addresses", quote(s)), expected: wantAddressRange}
		case p.Masked() != p:
			return &wrong{reason: fmt.Sprintf("%s is an address in a network, not a network", p), expected: wantAddressRange, nearest: p.Masked().String()}
		}
		*r = AddressRange{p.Addr(), last(p)}
		return nil
	}
	first, err := netip.ParseAddr(from)
	if err != nil {
		return &wrong{reason: fmt.Sprintf("%s is not an IP address", quote(from)), expected: wantAddressRange}
	}
	final, err := netip.ParseAddr(to)
	if err != nil {
		return &wrong{reason: fmt.Sprintf("%s is not an IP address", quote(to)), expected: wantAddressRange}
	}
	switch {
	case first.BitLen() != final.BitLen():
		return &wrong{reason: fmt.Sprintf("%s and %s are of two families", first, final), expected: wantAddressRange}
	case first.Zone() != "" || final.Zone() != "":
		return &wrong{reason: fmt.Sprintf("%s names a link", quote(s)), expected: wantAddressRange}
	case final.Less(first):
		return &wrong{reason: fmt.Sprintf("%s comes after %s", first, final), expected: wantAddressRange, nearest: fmt.Sprintf("%s-%s", final, first)}
	}
	*r = AddressRange{first, final}
	return nil
}

// String is the network, where the range is one, or first-last. The zero range is empty.
func (r AddressRange) String() string {
	if !r.First.IsValid() {
		return ""
	}
	for bits := 0; bits <= r.First.BitLen(); bits++ {
		if p := netip.PrefixFrom(r.First, bits); p.Masked() == p && last(p) == r.Last {
			return p.String()
		}
	}
	return r.First.String() + "-" + r.Last.String()
}

// MarshalText is String.
func (r AddressRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Contains says that an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// overlaps says that two ranges share addresses.
func (r AddressRange) overlaps(o AddressRange) bool {
	return r.First.BitLen() == o.First.BitLen() && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0
}

// size is the number of addresses.
func (r AddressRange) size() *big.Int {
	first, final := new(big.Int).SetBytes(r.First.AsSlice()), new(big.Int).SetBytes(r.Last.AsSlice())
	return final.Add(final.Sub(final, first), big.NewInt(1))
}

// last is the last address of a network.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
