package neighbor

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// MAC is a hardware address of Ethernet.
type MAC [6]byte

// String returns the usual form, for example 02:00:00:00:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// broadcast returns the broadcast address of the link.
func broadcast() MAC { return MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// The operations of ARP.
const (
	arpRequest = 1
	arpReply   = 2
)

// arp is an ARP packet for IPv4 over Ethernet (RFC 826), without the frame's header.
type arp struct {
	operation uint16
	senderMAC MAC
	sender    netip.Addr
	targetMAC MAC
	target    netip.Addr
}

// arpSize is the length of an ARP packet in bytes. On the wire, the padding of the Ethernet frame
// follows the packet.
const arpSize = 28

// arpHead returns the first bytes of every ARP packet: the types Ethernet and IPv4, and the lengths
// of their addresses.
func arpHead() [6]byte { return [6]byte{0, 1, 8, 0, 6, 4} }

// parseARP parses an ARP packet. It returns false for a packet that is too short or that is not for
// IPv4 over Ethernet.
func parseARP(b []byte) (arp, bool) {
	if len(b) < arpSize || [6]byte(b[:6]) != arpHead() {
		return arp{}, false
	}
	return arp{
		operation: binary.BigEndian.Uint16(b[6:8]),
		senderMAC: MAC(b[8:14]), sender: netip.AddrFrom4([4]byte(b[14:18])),
		targetMAC: MAC(b[18:24]), target: netip.AddrFrom4([4]byte(b[24:28])),
	}, true
}

func (p arp) bytes() []byte {
	head := arpHead()
	b := binary.BigEndian.AppendUint16(append(make([]byte, 0, arpSize), head[:]...), p.operation)
	b = append(append(b, p.senderMAC[:]...), p.sender.AsSlice()...)
	return append(append(b, p.targetMAC[:]...), p.target.AsSlice()...)
}

// announceARP returns an ARP Announcement of the address (RFC 5227, 1.1 and 3).
func announceARP(own MAC, address netip.Addr) arp {
	return arp{operation: arpRequest, senderMAC: own, sender: address, target: address}
}

// probeARP returns an ARP Probe (RFC 5227, 2.1.1), which asks for the owner of the address without
// a claim to it.
func probeARP(own MAC, address netip.Addr) arp {
	return arp{operation: arpRequest, senderMAC: own, sender: netip.IPv4Unspecified(), target: address}
}

// solicitARP returns an ordinary ARP request for the address, with the address from as its sender.
func solicitARP(own MAC, from, address netip.Addr) arp {
	return arp{operation: arpRequest, senderMAC: own, sender: from, target: address}
}

// answerARP returns the answer to a packet (valid if answers is true), and our address that the
// packet of another machine claims (invalid if it claims none). Every packet claims its sender
// address (RFC 5227, 2.4).
//
// A request that claims one of our addresses gets an answer, too: RFC 826 does not check the
// sender, and the machine that sent the claim still needs our other addresses. A probe also gets an
// answer, by which the prober detects that the address is in use.
func answerARP(p arp, own MAC, role func(netip.Addr) Role) (answer arp, answers bool, claimed netip.Addr) {
	if p.senderMAC == own {
		return arp{}, false, netip.Addr{} // our own packet, reflected by the link
	}
	if role(p.sender) != None {
		claimed = p.sender
	}
	if p.operation != arpRequest || role(p.target) != Answer || p.sender == p.target {
		return arp{}, false, claimed
	}
	return arp{operation: arpReply, senderMAC: own, sender: p.target, targetMAC: p.senderMAC, target: p.sender}, true, claimed
}
