package config

import (
	"fmt"
	"math/big"
	"net/netip"
	"strings"
)

// LoadBalancer configures the addresses of Services of type LoadBalancer.
type LoadBalancer struct {
	Pools []AddressPool `yaml:"pools,omitempty"`
}

// AddressPool is a set of addresses for Services. No other user of the network may have these
// addresses. If the machines announce the addresses by ARP and NDP (AnnounceLink), the addresses
// must belong to the network of the machines.
type AddressPool struct {
	Name      string         `yaml:"name" jsonschema:"required"`
	Ranges    []AddressRange `yaml:"ranges" jsonschema:"required"`
	OnRequest bool           `yaml:"onRequest"`
	Announce  Announcement   `yaml:"announce"`
}

// AddressRange is the range of addresses from First to Last, both of the same family. Its text
// format is a network, or "first-last".
type AddressRange struct{ First, Last netip.Addr }

const wantAddressRange = "a network or first-last, such as 192.0.2.64/27 or 192.0.2.100-192.0.2.120"

// UnmarshalText parses a range.
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
		*r = AddressRange{p.Addr(), lastAddress(p)}
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

// String returns the network if the range is exactly a network, otherwise "first-last"; "" for the
// zero value.
func (r AddressRange) String() string {
	if !r.First.IsValid() {
		return ""
	}
	for bits := 0; bits <= r.First.BitLen(); bits++ {
		if p := netip.PrefixFrom(r.First, bits); p.Masked() == p && lastAddress(p) == r.Last {
			return p.String()
		}
	}
	return r.First.String() + "-" + r.Last.String()
}

// MarshalText returns String.
func (r AddressRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// overlaps reports whether two ranges have common addresses.
func (r AddressRange) overlaps(o AddressRange) bool {
	return r.First.BitLen() == o.First.BitLen() && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0
}

// size returns the number of addresses.
func (r AddressRange) size() *big.Int {
	first, final := new(big.Int).SetBytes(r.First.AsSlice()), new(big.Int).SetBytes(r.Last.AsSlice())
	return final.Add(final.Sub(final, first), big.NewInt(1))
}

// lastAddress returns the last address of a network.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
