package neighbor

import (
	"encoding/binary"
	"net/netip"
)

// ndp is a Neighbor Solicitation or a Neighbor Advertisement (RFC 4861, 4.3 and 4.4) in its IPv6
// packet, without the frame's header.
type ndp struct {
	from, to      netip.Addr
	advertisement bool
	solicited     bool // only in an advertisement: it answers a solicitation
	// only in an advertisement: the machine forwards packets. Every machine of a cluster sets this
	// flag for its own addresses.
	router bool
	target netip.Addr // the address that the message is about
	// the link-layer address option: in a solicitation the sender's address, in an advertisement
	// the target's; zero if the message has no such option
	link MAC
}

// The sizes of the parts of a packet in bytes, and the numbers from the registries of IANA.
const (
	ipv6Head     = 40
	ndpSize      = 24 // without options
	optionSize   = 8
	icmpv6       = 58 // IANA protocol number
	hopLimit     = 255
	solicitation = 135 // types of ICMPv6
	advertising  = 136
	sourceLink   = 1 // types of options
	targetLink   = 2

	flagRouter    = 0x80
	flagSolicited = 0x40
	flagOverride  = 0x20
)

// allNodes returns the multicast group of all machines on the link.
func allNodes() netip.Addr { return netip.IPv6LinkLocalAllNodes() }

// solicitedNode returns the multicast group that receives solicitations for an address (RFC 4291,
// 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// groupMAC returns the hardware address of a multicast group (RFC 2464, 7).
func groupMAC(group netip.Addr) MAC {
	b := group.As16()
	return MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// parseNDP parses a packet. It returns false for packets that a receiver has to drop (RFC 4861,
// 7.1.1, 7.1.2). A router never forwards a packet with a hop limit of 255, so every accepted packet
// was sent on this link.
func parseNDP(b []byte) (ndp, bool) {
	if len(b) < ipv6Head+ndpSize || b[0]>>4 != 6 || b[6] != icmpv6 || b[7] != hopLimit {
		return ndp{}, false
	}
	length := int(binary.BigEndian.Uint16(b[4:6]))
	if length < ndpSize || len(b) < ipv6Head+length {
		return ndp{}, false
	}
	m := b[ipv6Head : ipv6Head+length]
	p := ndp{from: netip.AddrFrom16([16]byte(b[8:24])), to: netip.AddrFrom16([16]byte(b[24:40])), target: netip.AddrFrom16([16]byte(m[8:24]))}
	if m[0] != solicitation && m[0] != advertising || m[1] != 0 || p.target.IsMulticast() || checksum(p.from, p.to, m) != 0 {
		return ndp{}, false
	}
	p.advertisement = m[0] == advertising
	p.solicited = p.advertisement && m[4]&flagSolicited != 0
	p.router = p.advertisement && m[4]&flagRouter != 0
	option := byte(sourceLink)
	if p.advertisement {
		option = targetLink
	}
	for rest := m[ndpSize:]; len(rest) > 0; {
		size := 0
		if len(rest) > 1 {
			size = int(rest[1]) * optionSize
		}
		if size == 0 || size > len(rest) {
			return ndp{}, false
		}
		if rest[0] == option && size == optionSize {
			p.link = MAC(rest[2:8])
		}
		rest = rest[size:]
	}
	switch {
	case !p.advertisement && p.from.IsUnspecified() && (p.to != solicitedNode(p.target) || p.link != MAC{}):
		return ndp{}, false
	case p.advertisement && p.to.IsMulticast() && p.solicited:
		return ndp{}, false
	}
	return p, true
}

func (p ndp) bytes() []byte {
	m := make([]byte, ndpSize, ndpSize+optionSize)
	m[0] = solicitation
	option := byte(sourceLink)
	if p.advertisement {
		m[0], option = advertising, targetLink
		m[4] = flagOverride // a receiver replaces its neighbor entry
		if p.solicited {
			m[4] |= flagSolicited
		}
		if p.router {
			m[4] |= flagRouter
		}
	}
	copy(m[8:24], p.target.AsSlice())
	if p.link != (MAC{}) {
		m = append(append(m, option, 1), p.link[:]...)
	}
	binary.BigEndian.PutUint16(m[2:4], checksum(p.from, p.to, m))
	b := make([]byte, 0, ipv6Head+len(m))
	b = append(b, 6<<4, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(m))), icmpv6, hopLimit)
	b = append(append(b, p.from.AsSlice()...), p.to.AsSlice()...)
	return append(b, m...)
}

// checksum returns the ICMPv6 checksum (RFC 4443, 2.3) of the addresses, the length, the protocol
// and the message. If the message already contains its correct checksum, the result is 0.
func checksum(from, to netip.Addr, m []byte) uint16 {
	sum := uint32(len(m)) + icmpv6
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), m} {
		for ; len(part) > 1; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
		if len(part) == 1 {
			sum += uint32(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// announceNDP returns an unsolicited Neighbor Advertisement of the address (RFC 4861, 7.2.6).
func announceNDP(own MAC, address netip.Addr) ndp {
	return ndp{from: address, to: allNodes(), advertisement: true, target: address, link: own}
}

// probeNDP returns a solicitation as in duplicate address detection (RFC 4862, 5.4.2). It does not
// claim the address.
func probeNDP(address netip.Addr) ndp {
	return ndp{from: netip.IPv6Unspecified(), to: solicitedNode(address), target: address}
}

// solicitNDP returns a unicast solicitation to the owner of the address (RFC 4861, 7.3.1), with the
// address from as its source. A probe has an unspecified source address, and would be a conflict
// for a machine on which the address is still tentative: that machine would give the address up. A
// solicitation with a source address has no such effect.
func solicitNDP(own MAC, from, address netip.Addr) ndp {
	return ndp{from: from, to: address, target: address, link: own}
}

// answerNDP returns the answer to a packet and the hardware address that it goes to (valid if
// answers is true), and our address that another machine claims in the packet (invalid if it claims
// none). from is the hardware address that sent the packet. A probe also gets an answer, to all
// nodes.
func answerNDP(p ndp, from, own MAC, role func(netip.Addr) Role) (answer ndp, to MAC, answers bool, claimed netip.Addr) {
	switch {
	case from == own || role(p.target) == None:
		return ndp{}, MAC{}, false, netip.Addr{}
	case p.advertisement && p.link == own:
		return ndp{}, MAC{}, false, netip.Addr{} // a machine repeats our own advertisement
	case p.advertisement:
		return ndp{}, MAC{}, false, p.target
	case role(p.target) != Answer:
		return ndp{}, MAC{}, false, netip.Addr{}
	case p.from.IsUnspecified():
		return announceNDP(own, p.target), groupMAC(allNodes()), true, netip.Addr{}
	}
	return ndp{from: p.target, to: p.from, advertisement: true, solicited: true, target: p.target, link: own}, from, true, netip.Addr{}
}
