package neighbor

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The hardware addresses of three machines: ours, a neighbor, and another machine.
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

func ours(a netip.Addr) bool { return a == vip4 || a == vip6 }

// answering returns the roles of a machine that answers for our addresses. listening returns the
// roles of a machine that only receives the claims of their owners.
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

// TestARPBytes compares packets with those of another implementation.
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
	// with the padding of an Ethernet frame
	if got, ok := parseARP(append(buffer.Bytes(), make([]byte, 18)...)); !ok || got != p {
		t.Errorf("read %+v, %v", got, ok)
	}
}

func TestNDPBytes(t *testing.T) {
	for name, p := range map[string]ndp{
		"announcement": announceNDP(own, vip6),
		"probe":        probeNDP(vip6),
		"presence":     {from: vip6, to: allNodes(), advertisement: true, router: true, target: vip6, link: own},
		"answer":       {from: vip6, to: client6, advertisement: true, solicited: true, target: vip6, link: own},
		"question":     {from: client6, to: solicitedNode(vip6), target: vip6, link: neighbour},
		"still there?": solicitNDP(neighbour, client6, vip6),
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
		"a question": {
			packet: arp{operation: arpRequest, senderMAC: neighbour, sender: client4, target: vip4},
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: client4}, answers: true,
		},
		"whether we are still there": {
			packet: solicitARP(neighbour, client4, vip4),
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: client4}, answers: true,
		},
		"a probe": {
			packet: probeARP(neighbour, vip4),
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: neighbour, target: netip.IPv4Unspecified()}, answers: true,
		},
		"a question by one who is listened to": {
			packet: solicitARP(other, heard4, vip4),
			answer: arp{operation: arpReply, senderMAC: own, sender: vip4, targetMAC: other, target: heard4}, answers: true, claimed: heard4,
		},
		"about somebody else":     {packet: arp{operation: arpRequest, senderMAC: neighbour, sender: client4, target: client4.Next()}},
		"an answer":               {packet: arp{operation: arpReply, senderMAC: neighbour, sender: client4, targetMAC: own, target: vip4}},
		"another's announcement":  {packet: announceARP(other, vip4), claimed: vip4},
		"another's answer":        {packet: arp{operation: arpReply, senderMAC: other, sender: vip4, targetMAC: own}, claimed: vip4},
		"our own, sent back":      {packet: announceARP(own, vip4)},
		"somebody's announcement": {packet: announceARP(other, client4)},
	} {
		answer, answers, claimed := answerARP(c.packet, own, answering)
		if answer != c.answer || answers != c.answers || claimed != c.claimed {
			t.Errorf("%s: %+v, %v, %v", name, answer, answers, claimed)
		}
		if _, answers, claimed := answerARP(c.packet, own, listening); answers || claimed != c.claimed {
			t.Errorf("%s, to one that only listens: %v, %v", name, answers, claimed)
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
		"a question":                 {packet: question, from: neighbour, answer: answer, to: neighbour, answers: true},
		"whether we are still there": {packet: alone, from: neighbour, answer: answer, to: neighbour, answers: true},
		"a probe":                    {packet: probeNDP(vip6), from: neighbour, answer: announceNDP(own, vip6), to: MAC{0x33, 0x33, 0, 0, 0, 1}, answers: true},
		"about somebody else":        {packet: elsewhere, from: neighbour},
		"another's announcement":     {packet: announceNDP(other, vip6), from: other, claimed: vip6},
		"our own, sent back":         {packet: announceNDP(own, vip6), from: own},
		"our own, repeated":          {packet: announceNDP(own, vip6), from: other},
	} {
		answer, to, answers, claimed := answerNDP(c.packet, c.from, own, answering)
		if answer != c.answer || to != c.to || answers != c.answers || claimed != c.claimed {
			t.Errorf("%s: %+v, %x, %v, %v", name, answer, to, answers, claimed)
		}
		if _, _, answers, claimed := answerNDP(c.packet, c.from, own, listening); answers || claimed != c.claimed {
			t.Errorf("%s, to one that only listens: %v, %v", name, answers, claimed)
		}
	}
}

// TestRefused checks that the parsers reject packets from outside the link and malformed packets.
func TestRefused(t *testing.T) {
	good := ndp{from: client6, to: solicitedNode(vip6), target: vip6, link: neighbour}.bytes()
	for name, change := range map[string]func(b []byte) []byte{
		"came through a router": func(b []byte) []byte { b[7] = 254; return b },
		"checksum":              func(b []byte) []byte { b[42]++; return b },
		"cut":                   func(b []byte) []byte { return b[:len(b)-1] },
		"another protocol":      func(b []byte) []byte { b[6] = 17; return b },
		"IPv4":                  func(b []byte) []byte { b[0] = 4 << 4; return b },
		"option without length": func(b []byte) []byte { return summed(b, func(m []byte) { m[25] = 0 }) },
		"option too long":       func(b []byte) []byte { return summed(b, func(m []byte) { m[25] = 2 }) },
		"about a group":         func(b []byte) []byte { return summed(b, func(m []byte) { m[8] = 0xff }) },
		"code":                  func(b []byte) []byte { return summed(b, func(m []byte) { m[1] = 1 }) },
		"an echo":               func(b []byte) []byte { return summed(b, func(m []byte) { m[0] = 128 }) },
		"a probe that names its sender": func([]byte) []byte {
			return ndp{from: netip.IPv6Unspecified(), to: solicitedNode(vip6), target: vip6, link: neighbour}.bytes()
		},
		"an answer to all": func([]byte) []byte {
			return ndp{from: client6, to: allNodes(), advertisement: true, solicited: true, target: vip6, link: other}.bytes()
		},
	} {
		if p, ok := parseNDP(change(bytes.Clone(good))); ok {
			t.Errorf("%s: read %+v", name, p)
		}
	}
	for name, b := range map[string][]byte{
		"short":    announceARP(own, vip4).bytes()[:27],
		"IEEE 802": append([]byte{0, 6}, announceARP(own, vip4).bytes()[2:]...),
	} {
		if p, ok := parseARP(b); ok {
			t.Errorf("%s: read %+v", name, p)
		}
	}
}

// summed changes the message of a packet and corrects its checksum.
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
				t.Errorf("answered for %s", answer.sender)
			}
		}
		if p, ok := parseNDP(b); ok {
			if again, ok := parseNDP(p.bytes()); !ok || again != p {
				t.Errorf("%+v became %+v", p, again)
			}
			if answer, _, answers, _ := answerNDP(p, neighbour, own, answering); answers && !ours(answer.target) {
				t.Errorf("answered for %s", answer.target)
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
		t.Errorf("its hardware address: %x", m)
	}
}
