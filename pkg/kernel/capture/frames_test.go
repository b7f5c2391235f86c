package capture

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// frame is a packet and its name in the list cases.
type frame struct {
	name string
	data []byte
}

// Ethernet addresses of every frame. The source address distinguishes frames of the test from other
// frames.
var (
	ours   = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x99}
	theirs = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
)

// frames returns one Ethernet packet of each kind that filters distinguish. "A" is 10.0.0.1 or
// 2001:db8::1, "B" 10.0.0.2 or 2001:db8::2, "C" 10.9.0.3 or 2001:db9::3.
func frames(t *testing.T) []frame {
	t.Helper()
	a4, b4, c4 := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 2}, net.IP{10, 9, 0, 3}
	a6, b6, c6 := net.ParseIP("2001:db8::1"), net.ParseIP("2001:db8::2"), net.ParseIP("2001:db9::3")
	v4 := func(src, dst net.IP, p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, SrcIP: src, DstIP: dst, Protocol: p}
	}
	v6 := func(src, dst net.IP, p layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 64, SrcIP: src, DstIP: dst, NextHeader: p}
	}
	tcp := func(src, dst layers.TCPPort) gopacket.SerializableLayer {
		return &layers.TCP{SrcPort: src, DstPort: dst, SYN: true}
	}
	udp := func(src, dst layers.UDPPort) gopacket.SerializableLayer {
		return &layers.UDP{SrcPort: src, DstPort: dst}
	}
	ports := func(src, dst uint16) gopacket.Payload {
		return gopacket.Payload(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst))
	}
	options := v4(a4, b4, layers.IPProtocolTCP)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	first, later := v4(a4, b4, layers.IPProtocolUDP), v4(a4, b4, layers.IPProtocolUDP)
	first.Flags, later.FragOffset = layers.IPv4MoreFragments, 100
	arp := &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
		SourceHwAddress: ours, SourceProtAddress: a4.To4(), DstHwAddress: make([]byte, 6), DstProtAddress: c4.To4(),
	}
	var all []frame
	add := func(name string, kind layers.EthernetType, above ...gopacket.SerializableLayer) {
		buffer := gopacket.NewSerializeBuffer()
		above = append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: ours, DstMAC: theirs, EthernetType: kind}}, above...)
		if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, above...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, frame{name, buffer.Bytes()})
	}
	// A → B
	add("web4", layers.EthernetTypeIPv4, v4(a4, b4, layers.IPProtocolTCP), tcp(40000, 80))
	// A → B
	add("web6", layers.EthernetTypeIPv6, v6(a6, b6, layers.IPProtocolTCP), tcp(40000, 80))
	// B → A
	add("dns4", layers.EthernetTypeIPv4, v4(b4, a4, layers.IPProtocolUDP), udp(53, 40001))
	// B → C
	add("dns6", layers.EthernetTypeIPv6, v6(b6, c6, layers.IPProtocolUDP), udp(53, 40001))
	// A → B
	add("options", layers.EthernetTypeIPv4, options, tcp(80, 443))
	// A → B, the first fragment
	add("first", layers.EthernetTypeIPv4, first, udp(80, 53))
	// A → B, a later fragment
	add("later", layers.EthernetTypeIPv4, later, ports(80, 53))
	// C → A
	add("sctp", layers.EthernetTypeIPv4, v4(c4, a4, layers.IPProtocolSCTP), ports(80, 9999))
	// C → B
	add("ping4", layers.EthernetTypeIPv4, v4(c4, b4, layers.IPProtocolICMPv4), ports(80, 80))
	// C → A
	add("ping6", layers.EthernetTypeIPv6, v6(c6, a6, layers.IPProtocolICMPv6), ports(80, 80))
	// A asks for C
	add("arp", layers.EthernetTypeARP, arp)
	// The EtherType 0x88b5 is reserved for experiments (IEEE 802).
	add("other", layers.EthernetType(0x88b5), ports(80, 80), gopacket.Payload(make([]byte, 40)))
	return all
}

// tagged returns the frame with a VLAN tag.
func tagged(data []byte) []byte {
	return append(append(append([]byte(nil), data[:12]...), 0x81, 0, 0x20, 0x05), data[12:]...)
}

// cases lists expressions and the frames that they pass.
var cases = []struct{ filter, frames string }{
	{"", "web4 web6 dns4 dns6 options first later sctp ping4 ping6 arp other"},
	{"ip", "web4 dns4 options first later sctp ping4"},
	{"ip6", "web6 dns6 ping6"},
	{"arp", "arp"},
	{"tcp", "web4 web6 options"},
	{"udp", "dns4 dns6 first later"},
	{"icmp", "ping4"},
	{"icmp6", "ping6"},
	{"not ip and not ip6", "arp other"},
	{"port 80", "web4 web6 options first sctp"},
	{"tcp port 80", "web4 web6 options"},
	{"udp port 80", "first"},
	{"src port 80", "options first sctp"},
	{"dst port 80", "web4 web6"},
	{"tcp src port 80", "options"},
	{"port 443", "options"},
	{"port 53", "dns4 dns6 first"},
	{"udp src port 53", "dns4 dns6"},
	{"not port 53", "web4 web6 options later sctp ping4 ping6 arp other"},
	{"host 10.0.0.1", "web4 dns4 options first later sctp arp"},
	{"src host 10.0.0.1", "web4 options first later arp"},
	{"dst 10.0.0.1", "dns4 sctp"},
	{"dst host 10.9.0.3", "arp"},
	{"ip host 10.0.0.1", "web4 dns4 options first later sctp"},
	{"arp host 10.0.0.1", "arp"},
	{"host 10.0.0.3", ""},
	{"net 10.0.0.0/16", "web4 dns4 options first later sctp ping4 arp"},
	{"src net 10.9.0.0/16", "sctp ping4"},
	{"net 0.0.0.0/0", "web4 dns4 options first later sctp ping4 arp"},
	{"dst net 10.0.0.2/31", "web4 options first later ping4"},
	{"host 2001:db8::1", "web6 ping6"},
	{"src host 2001:db8::2", "dns6"},
	{"net 2001:db8::/32", "web6 dns6 ping6"},
	{"src net 2001:db8::/31", "web6 dns6 ping6"},
	{"src net 2001:db9::/33", "ping6"},
	{"dst net 2001:db8::/127", "ping6"},
	{"net ::/0", "web6 dns6 ping6"},
	{"ip6 dst net 2001:db9::/32", "dns6"},
	{"tcp and host 10.0.0.1", "web4 options"},
	{"arp or icmp or icmp6", "ping4 ping6 arp"},
	{"not (tcp or udp)", "sctp ping4 ping6 arp other"},
	{"tcp and (port 443 or host 2001:db8::2)", "web6 options"},
	{"(host 10.0.0.1 and host 10.0.0.2) and not udp port 53", "web4 options later"},
	{"not not arp", "arp"},
	{"((tcp))", "web4 web6 options"},
}
