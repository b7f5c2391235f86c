package neighbor

import (
	"net/netip"
	"slices"
)

// Link is a link on which the machine can answer: Ethernet, and up.
type Link struct {
	Index    int
	Name     string
	MAC      MAC
	Networks []netip.Prefix // the machine's addresses on it, with the lengths of their networks
}

// SeenAddress is what was heard of another machine: it speaks for an address.
type SeenAddress struct {
	Address   netip.Addr
	MAC       MAC
	Link      string // on which it was heard
	Announced bool   // nobody had asked
}

// source is the address of this machine by which it asks somebody who was heard; invalid when it
// has none of the family on the link.
func source(c SeenAddress, links []Link) netip.Addr {
	var from netip.Addr
	for _, l := range links {
		if l.Name != c.Link {
			continue
		}
		for _, n := range l.Networks {
			if n.Contains(c.Address) {
				return n.Addr()
			}
			if n.Addr().Is4() == c.Address.Is4() && !from.IsValid() {
				from = n.Addr()
			}
		}
	}
	return from
}

// Place says on which links a machine answers for an address: those whose network the address is
// in. An address that is in none is for a router that knows the pool to be on the machines' link:
// the one that has the machine's own address of the family. Where there is none either, nobody
// could ask, and there is none.
func Place(address netip.Addr, links []Link, own []netip.Addr) []Link {
	var in []Link
	for _, l := range links {
		if slices.ContainsFunc(l.Networks, func(n netip.Prefix) bool { return n.Contains(address) }) {
			in = append(in, l)
		}
	}
	if len(in) > 0 {
		return in
	}
	for _, l := range links {
		if slices.ContainsFunc(l.Networks, func(n netip.Prefix) bool { return n.Addr().Is4() == address.Is4() && slices.Contains(own, n.Addr()) }) {
			return []Link{l}
		}
	}
	return nil
}
