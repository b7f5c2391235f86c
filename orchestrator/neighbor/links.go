package neighbor

import (
	"net/netip"
	"slices"
)

// Link is a link on which the machine can answer: Ethernet, and up.
type Link struct {
	Index int
	Name  string
	MAC   MAC
	// the machine's addresses on it, with the prefix lengths of their networks
	Networks []netip.Prefix
}

// SeenAddress is another machine's claim of an address.
type SeenAddress struct {
	Address   netip.Addr
	MAC       MAC
	Link      string // the link that received it
	Announced bool   // unsolicited
}

// source returns the address with which this machine solicits another machine. It is invalid if the
// link has no address of the family.
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

// Place returns the links on which a machine answers for an address: all links with a network that
// contains the address. An address outside all networks belongs to a pool that a router routes to
// the machines' link, which is the link with the machine's own address of the family. Without this
// link no machine could resolve the address, and Place returns none.
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
