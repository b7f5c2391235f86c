package neighbor

import (
	"net/netip"
	"slices"
)

// Link is a link on which the machine can answer: an Ethernet link that is up.
type Link struct {
	Index int
	Name  string
	MAC   MAC
	// the machine's addresses on the link, with the prefix lengths of their networks
	Networks []netip.Prefix
}

// SeenAddress is another machine's claim of an address.
type SeenAddress struct {
	Address   netip.Addr
	MAC       MAC
	Link      string // the link that received it
	Announced bool   // true: an unsolicited announcement
}

// source returns the address from which this machine solicits the machine that sent the claim c. It
// returns the zero Addr if the link of c has no address of the same family.
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
// contains the address. For an address outside all networks, it returns the first link with an
// address of own in the same family, because a router routes packets for the address to this link.
// Without such a link, no machine could resolve the address, and Place returns nil.
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
