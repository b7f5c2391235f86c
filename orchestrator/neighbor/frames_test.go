package neighbor

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The hardware addresses of three machines: our own machine, a client, and a machine that announces
// addresses, too.
var (
	own       = MAC{2, 0, 0, 0, 0, 1}
	neighbour = MAC{2, 0, 0, 0, 0, 2}
	other     = MAC{2, 0, 0, 0, 0, 3}
)

var (
	vip4, client4 = netip.MustParseAddr("192.0.2.70"), netip.MustParseAddr("192.0.2.5")
	heard4        = netip.MustParseAddr("192.0.2.6") // another node's own address
	vip6, client6 = netip.MustParseAddr("2001:db8::70"), netip.MustParseAddr("2001:db8::5")
)

// ours reports whether our machine can answer for an address.
func ours(a netip.Addr) bool { return a == vip4 || a == vip6 }

// answering returns the role of our machine for an address if the machine answers for our
// addresses. listening returns its role if the machine does not answer, and only receives the
// announcements of the owners of these addresses.
func answering(a netip.Addr) Role {
	if ours(a) {
		return Answer
	}
	if a == heard4 {
		return Listen
	}
	return None
}

func listening(a netip.Addr) Role {
	if ours(a) || a == heard4 {
		return Listen
	}
	return None
}

// TestARPBytes checks that our encoding of an ARP packet is equal to that of gopacket, and that our
// parser reads it.
func TestARPBytes(t *testing.T) {
	p := arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: client4}
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{}, &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPReply,
		SourceHwAddress: own[:], SourceProtAddress: vip4.AsSlice(), DstHwAddress: neighbour[:], DstProtAddress: client4.AsSlice(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.bytes(), buffer.Bytes()) {
		t.Errorf("got  %x\nwant %x", p.bytes(), buffer.Bytes())
	}
	// The parser ignores the padding of an Ethernet frame.
	if got, ok := parseARP(append(buffer.Bytes(), make([]byte, 18)...)); !ok || got != p {
		t.Errorf("read %+v, %v", got, ok)
	}
}

func TestNDPBytes(t *testing.T) {
	for name, p := range map[string]ndp{
		"announcement":                     announceNDP(own, vip6),
		"probe":                            probeNDP(vip6),
		"announcement of a router":         {from: vip6, to: allNodes(), advertisement: true, router: true, target: vip6, link: own},
		"answer":                           {from: vip6, to: client6, advertisement: true, solicited: true, target: vip6, link: own},
		"solicitation":                     {from: client6, to: solicitedNode(vip6), target: vip6, link: neighbour},
		"solicitation to a known neighbor": solicitNDP(neighbour, client6, vip6),
	} {
		t.Run(name, func(t *testing.T) {
			ip := &layers.IPv6{
				Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: p.from.AsSlice(), DstIP: p.to.AsSlice(),
			}
			kind, option := layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0), layers.ICMPv6OptSourceAddress
			var message gopacket.SerializableLayer
			var options layers.ICMPv6Options
			if p.advertisement {
				kind, option = layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0), layers.ICMPv6OptTargetAddress
			}
			if p.link != (MAC{}) {
				options = layers.ICMPv6Options{{Type: option, Data: p.link[:]}}
			}
			flags := uint8(flagOverride)
			if p.solicited {
				flags |= flagSolicited
			}
			if p.router {
				flags |= flagRouter
			}
			message = &layers.ICMPv6NeighborSolicitation{TargetAddress: p.target.AsSlice(), Options: options}
			if p.advertisement {
				message = &layers.ICMPv6NeighborAdvertisement{Flags: flags, TargetAddress: p.target.AsSlice(), Options: options}
			}
			icmp := &layers.ICMPv6{TypeCode: kind}
			if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
				t.Fatal(err)
			}
			buffer := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, icmp, message); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p.bytes(), buffer.Bytes()) {
				t.Errorf("got  %x\nwant %x", p.bytes(), buffer.Bytes())
			}
			if got, ok := parseNDP(buffer.Bytes()); !ok || got != p {
				t.Errorf("read %+v, %v, want %+v", got, ok, p)
			}
		})
	}
}

func TestAnswerARP(t *testing.T) {
	for name, c := range map[string]struct {
		packet  arp
		answer  arp
		answers bool
		claimed netip.Addr
	}{
		"a request": {
			packet: arp{operation: arpRequest, senderMAC: neighbour, sender: client4, target: vip4},
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: client4}, answers: true,
		},
		"a request to our hardware address": {
			packet: solicitARP(neighbour, client4, vip4),
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: client4}, answers: true,
		},
		"a probe": {
			packet: probeARP(neighbour, vip4),
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: netip.IPv4Unspecified()}, answers: true,
		},
		"a request by a machine that announces an address": {
			packet: solicitARP(other, heard4, vip4),
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: other, target: heard4}, answers: true, claimed: heard4,
		},
		"a request for another address":                     {packet: arp{operation: arpRequest, senderMAC: neighbour, sender: client4, target: client4.Next()}},
		"a reply of a client":                               {packet: arp{operation: arpReply, senderMAC: neighbour, sender: client4, targetMAC: own, target: vip4}},
		"an announcement of our address by another machine": {packet: announceARP(other, vip4), claimed: vip4},
		"a reply for our address by another machine":        {packet: arp{operation: arpReply, senderMAC: other, sender: vip4, targetMAC: own}, claimed: vip4},
		"our own announcement, sent back":                   {packet: announceARP(own, vip4)},
		"an announcement of an unrelated address":           {packet: announceARP(other, client4)},
	} {
		answer, answers, claimed := answerARP(c.packet, own, answering)
		if answer != c.answer || answers != c.answers || claimed != c.claimed {
			t.Errorf("%s: answer %+v, answers %v, claimed address %v", name, answer, answers, claimed)
		}
		if _, answers, claimed := answerARP(c.packet, own, listening); answers || claimed != c.claimed {
			t.Errorf("%s, to a machine that only listens: answers %v, claimed address %v", name, answers, claimed)
		}
	}
}

func TestAnswerNDP(t *testing.T) {
	question := ndp{from: client6, to: solicitedNode(vip6), target: vip6, link: neighbour}
	answer := ndp{from: vip6, to: client6, advertisement: true, solicited: true, target: vip6, link: own}
	alone := question
	alone.to, alone.link = vip6, MAC{}
	elsewhere := question
	elsewhere.target = client6
	for name, c := range map[string]struct {
		packet  ndp
		from    MAC
		answer  ndp
		to      MAC
		answers bool
		claimed netip.Addr
	}{
		"a solicitation":                     {packet: question, from: neighbour, answer: answer, to: neighbour, answers: true},
		"a solicitation to our address":      {packet: alone, from: neighbour, answer: answer, to: neighbour, answers: true},
		"a probe":                            {packet: probeNDP(vip6), from: neighbour, answer: announceNDP(own, vip6), to: MAC{0x33, 0x33, 0, 0, 0, 1}, answers: true},
		"a solicitation for another address": {packet: elsewhere, from: neighbour},
		"an announcement of our address by another machine": {packet: announceNDP(other, vip6), from: other, claimed: vip6},
		"our own announcement, sent back":                   {packet: announceNDP(own, vip6), from: own},
		"our own announcement, from another sender":         {packet: announceNDP(own, vip6), from: other},
	} {
		answer, to, answers, claimed := answerNDP(c.packet, c.from, own, answering)
		if answer != c.answer || to != c.to || answers != c.answers || claimed != c.claimed {
			t.Errorf("%s: answer %+v to %x, answers %v, claimed address %v", name, answer, to, answers, claimed)
		}
		if _, _, answers, claimed := answerNDP(c.packet, c.from, own, listening); answers || claimed != c.claimed {
			t.Errorf("%s, to a machine that only listens: answers %v, claimed address %v", name, answers, claimed)
		}
	}
}

// TestRefused checks that the parsers reject packets from outside the link and malformed packets.
func TestRefused(t *testing.T) {
	good := ndp{from: client6, to: solicitedNode(vip6), target: vip6, link: neighbour}.bytes()
	for name, change := range map[string]func(b []byte) []byte{
		"came through a router": func(b []byte) []byte { b[7] = 254; return b },
		"wrong checksum":        func(b []byte) []byte { b[42]++; return b },
		"truncated":             func(b []byte) []byte { return b[:len(b)-1] },
		"another protocol":      func(b []byte) []byte { b[6] = 17; return b },
		"IPv4":                  func(b []byte) []byte { b[0] = 4 << 4; return b },
		"option without length": func(b []byte) []byte { return summed(b, func(m []byte) { m[25] = 0 }) },
		"option too long":       func(b []byte) []byte { return summed(b, func(m []byte) { m[25] = 2 }) },
		"multicast target":      func(b []byte) []byte { return summed(b, func(m []byte) { m[8] = 0xff }) },
		"unknown ICMPv6 code":   func(b []byte) []byte { return summed(b, func(m []byte) { m[1] = 1 }) },
		"an echo request":       func(b []byte) []byte { return summed(b, func(m []byte) { m[0] = 128 }) },
		"a probe with a link-layer address": func([]byte) []byte {
			return ndp{from: netip.IPv6Unspecified(), to: solicitedNode(vip6), target: vip6, link: neighbour}.bytes()
		},
		"a solicited advertisement to all nodes": func([]byte) []byte {
			return ndp{from: client6, to: allNodes(), advertisement: true, solicited: true, target: vip6, link: other}.bytes()
		},
	} {
		if p, ok := parseNDP(change(bytes.Clone(good))); ok {
			t.Errorf("%s: read %+v", name, p)
		}
	}
	for name, b := range map[string][]byte{
		"truncated":              announceARP(own, vip4).bytes()[:27],
		"hardware type IEEE 802": append([]byte{0, 6}, announceARP(own, vip4).bytes()[2:]...),
	} {
		if p, ok := parseARP(b); ok {
			t.Errorf("%s: read %+v", name, p)
		}
	}
}

// summed changes the ICMPv6 message of a packet by the function change, corrects the checksum, and
// returns the packet.
func summed(b []byte, change func(m []byte)) []byte {
	m := b[ipv6Head:]
	change(m)
	m[2], m[3] = 0, 0
	sum := checksum(netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), m)
	m[2], m[3] = byte(sum>>8), byte(sum)
	return b
}

// FuzzFrames checks two properties for every input: only requests for our own addresses get an
// answer, and a parsed packet survives encoding and parsing.
func FuzzFrames(f *testing.F) {
	f.Add(announceARP(other, vip4).bytes())
	f.Add(probeNDP(vip6).bytes())
	f.Add(announceNDP(other, vip6).bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseARP(b); ok {
			if again, ok := parseARP(p.bytes()); !ok || again != p {
				t.Errorf("%+v became %+v", p, again)
			}
			if answer, answers, _ := answerARP(p, own, answering); answers && !ours(answer.sender) {
				t.Errorf("an ARP packet is answered for %s, which is not our address", answer.sender)
			}
		}
		if p, ok := parseNDP(b); ok {
			if again, ok := parseNDP(p.bytes()); !ok || again != p {
				t.Errorf("%+v became %+v", p, again)
			}
			if answer, _, answers, _ := answerNDP(p, neighbour, own, answering); answers && !ours(answer.target) {
				t.Errorf("an NDP packet is answered for %s, which is not our address", answer.target)
			}
		}
	})
}

func TestGroups(t *testing.T) {
	a := netip.MustParseAddr("2001:db8::1:2345:6789")
	if got, want := solicitedNode(a), netip.MustParseAddr("ff02::1:ff45:6789"); got != want {
		t.Errorf("group of %s: %s, want %s", a, got, want)
	}
	if m := groupMAC(solicitedNode(a)); net.HardwareAddr(m[:]).String() != "33:33:ff:45:67:89" {
		t.Errorf("hardware address of the group: %x", m)
	}
}
