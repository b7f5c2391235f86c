package neighbor

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// MAC is a hardware address of Ethernet.
type MAC [6]byte

// String is the usual form, 02:00:00:00:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// broadcast is every machine of the link.
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

// arpSize is its length in bytes. On the wire an Ethernet frame has padding behind it.
const arpSize = 28

// arpHead is what all of them begin with: Ethernet, IPv4, and the lengths of their addresses.
func arpHead() [6]byte { return [6]byte{0, 1, 8, 0, 6, 4} }

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

// announceARP tells everybody who has the address: an ARP Announcement (RFC 5227, 1.1 and 3).
func announceARP(own MAC, address netip.Addr) arp {
	return arp{operation: arpRequest, senderMAC: own, sender: address, target: address}
}

// probeARP asks who has the address without claiming it: an ARP Probe (RFC 5227, 2.1.1).
func probeARP(own MAC, address netip.Addr) arp {
	return arp{operation: arpRequest, senderMAC: own, sender: netip.IPv4Unspecified(), target: address}
}

// askARP asks as any neighbour does.
func askARP(own MAC, from, address netip.Addr) arp {
	return arp{operation: arpRequest, senderMAC: own, sender: from, target: address}
}

// answerARP says what to answer to a packet, if anything, and for which address that concerns us
// another machine speaks in it: any packet of such a sender is a claim (RFC 5227, 2.4). It may be a
// question too, and is answered (RFC 826 asks nobody who he is): what others say of their own
// addresses must not keep anybody from ours. Whoever probes is answered, and learns that the
// address is in use.
func answerARP(p arp, own MAC, role func(netip.Addr) Role) (answer arp, answers bool, claimed netip.Addr) {
	if p.senderMAC == own {
		return arp{}, false, netip.Addr{} // our own, sent back by the link
	}
	if role(p.sender) != None {
		claimed = p.sender
	}
	if p.operation != arpRequest || role(p.target) != Answer || p.sender == p.target {
		return arp{}, false, claimed
	}
	return arp{operation: arpReply, senderMAC: own, sender: p.target, targetMAC: p.senderMAC, target: p.sender}, true, claimed
}
