package lldp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// tlv returns a TLV (type, length, value) of a frame.
func tlv(kind int, value string) string {
	return string(appendTLV(nil, kind, []byte(value)))
}

// frameOf returns an Ethernet frame of LLDP with these TLVs.
func frameOf(tlvs ...string) []byte {
	return []byte("\x01\x80\xc2\x00\x00\x0e\x02\x00\x00\x00\x00\x01\x88\xcc" + strings.Join(tlvs, ""))
}

// The TLVs that every frame has.
var (
	chassis = tlv(typeChassis, "\x04\x00\x1c\x73\x01\x02\x03")
	port    = tlv(typePort, "\x05Ethernet1/17")
	ttl     = tlv(typeTTL, "\x00\x78")
	end     = tlv(typeEnd, "")
)

// least is the neighbor that a frame with only these TLVs describes.
var least = Neighbor{Chassis: "00:1c:73:01:02:03", Port: "Ethernet1/17", TTL: 120}

// The function with returns a copy of least, changed by the function change.
func with(change func(*Neighbor)) Neighbor {
	n := least
	change(&n)
	return n
}

// TestDecode checks the neighbors that valid frames describe. A frame may contain optional TLVs
// whose values are unusable or unknown.
func TestDecode(t *testing.T) {
	for _, c := range []struct {
		name string
		tlvs []string
		want Neighbor
	}{
		{"the mandatory TLVs", []string{chassis, port, ttl, end}, least},
		{"padding of a short frame", []string{chassis, port, ttl, end, strings.Repeat("\x00", 20)}, least},
		{"all TLVs of a switch", []string{chassis, port, ttl,
			tlv(typePortDescription, "to m1"), tlv(typeSystemName, "leaf1.example"), tlv(typeSystemDescription, "EOS 4.30\r\nbuild 1"),
			tlv(typeCapabilities, "\x00\x14\x00\x14"), tlv(typeManagement, "\x05\x01\x0a\x00\x00\x02\x02\x00\x00\x00\x01\x00"),
			tlv(typeManagement, "\x11\x02"+string(netip.MustParseAddr("2001:db8::2").AsSlice())+"\x02\x00\x00\x00\x01\x00"),
			tlv(typeOrganization, "\x00\x80\xc2\x01\x00\x64"), tlv(typeOrganization, "\x00\x12\x0f\x04\x05\xdc"), tlv(99, "unknown"), end,
		}, with(func(n *Neighbor) {
			n.PortDescription, n.SystemName, n.SystemDescription = "to m1", "leaf1.example", "EOS 4.30??build 1"
			n.Capabilities, n.VLAN = []string{"bridge", "router"}, 100
			n.Management = []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")}
		})},
		{"a port with a MAC, a chassis with an address",
			[]string{tlv(typeChassis, "\x05\x01\x0a\x00\x00\x02"), tlv(typePort, "\x03\x00\x1c\x73\x01\x02\x04"), ttl, end},
			Neighbor{Chassis: "10.0.0.2", Port: "00:1c:73:01:02:04", TTL: 120}},
		{"a MAC and an address of wrong lengths", []string{tlv(typeChassis, "\x04\xab\xcd"), tlv(typePort, "\x04\x01\x0a"), ttl, end}, Neighbor{Chassis: "abcd", Port: "010a", TTL: 120}},
		{"a text with a final zero byte, blanks and an escape", []string{chassis, port, ttl, tlv(typeSystemName, " a\x1b[2J \x00\x00"), end}, with(func(n *Neighbor) { n.SystemName = "a?[2J" })},
		{"the longest text", []string{chassis, port, ttl, tlv(typeSystemName, strings.Repeat("a", 511)), end}, with(func(n *Neighbor) { n.SystemName = strings.Repeat("a", 255) })},
		{"optional TLVs with unusable values", []string{chassis, port, ttl,
			tlv(typeCapabilities, "\x00"), tlv(typeManagement, ""), tlv(typeManagement, "\xff\x01"), tlv(typeManagement, "\x00\x00"), tlv(typeOrganization, "\x00\x80\xc2"),
			tlv(typeOrganization, "\x00\x80\xc2\x01\xff\xff"), end}, least},
		{"a fifth management address", []string{chassis, port, ttl, strings.Repeat(tlv(typeManagement, "\x05\x01\x0a\x00\x00\x02"), 5), end},
			with(func(n *Neighbor) {
				a := netip.MustParseAddr("10.0.0.2")
				n.Management = []netip.Addr{a, a, a, a}
			})},
		{"the last announcement, with TTL 0", []string{chassis, port, tlv(typeTTL, "\x00\x00"), end}, with(func(n *Neighbor) { n.TTL = 0 })},
	} {
		if got, err := decode(frameOf(c.tlvs...)); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

// TestDecodeRejects checks that decode rejects incomplete frames, frames of another protocol, and
// frames with missing or invalid mandatory TLVs.
func TestDecodeRejects(t *testing.T) {
	whole := frameOf(chassis, port, ttl, tlv(typeSystemName, "leaf1"), end)
	for i := range whole {
		if n, err := decode(whole[:i]); err == nil {
			t.Errorf("a frame of %d bytes was accepted: %+v", i, n)
		}
	}
	other := frameOf(chassis, port, ttl, end)
	binary.BigEndian.PutUint16(other[12:], 0x0806)
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"another EtherType":   {other, "not a frame of LLDP"},
		"no chassis":          {frameOf(port, ttl, end), "TLV 1 has type 2"},
		"another order":       {frameOf(chassis, ttl, port, end), "TLV 2 has type 3"},
		"no TTL":              {frameOf(chassis, port, end), "TLV 3 has type 0"},
		"two chassis":         {frameOf(chassis, port, ttl, chassis, end), "TLV 4 has type 1"},
		"an empty chassis":    {frameOf(tlv(typeChassis, "\x04"), port, ttl, end), "has 1 bytes; expected 2 to 256"},
		"a chassis too long":  {frameOf(tlv(typeChassis, "\x07"+strings.Repeat("a", 256)), port, ttl, end), "has 257 bytes"},
		"a TTL of four bytes": {frameOf(chassis, port, tlv(typeTTL, "\x00\x00\x00\x01"), end), "expected 2"},
		"a cut value":         {frameOf(chassis, port, ttl, "\x0b\xffabc"), "has 511 bytes, and the frame contains 3"},
	} {
		if _, err := decode(c.frame); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// TestEncode encodes an announcement, and decodes it with the decoder of gopacket and with the
// decoder of this package.
func TestEncode(t *testing.T) {
	mac := net.HardwareAddr{0x52, 0x54, 0, 0x12, 0x34, 0x56}
	frame := encode(Announcement{Name: "m1", Link: "eth0", MAC: mac, TTL: 2 * time.Minute})
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if failed := p.ErrorLayer(); failed != nil {
		t.Fatal(failed.Error())
	}
	core, _ := p.Layer(layers.LayerTypeLinkLayerDiscovery).(*layers.LinkLayerDiscovery)
	info, _ := p.Layer(layers.LayerTypeLinkLayerDiscoveryInfo).(*layers.LinkLayerDiscoveryInfo)
	if core == nil || info == nil {
		t.Fatalf("no LLDP in %v", p)
	}
	if core.ChassisID.Subtype != layers.LLDPChassisIDSubTypeMACAddr || net.HardwareAddr(core.ChassisID.ID).String() != mac.String() ||
		core.PortID.Subtype != layers.LLDPPortIDSubtypeIfaceName || string(core.PortID.ID) != "eth0" || core.TTL != 120 ||
		info.SysName != "m1" || !info.SysCapabilities.EnabledCap.StationOnly || info.SysCapabilities.EnabledCap.Bridge {
		t.Errorf("%+v, %+v", core, info)
	}
	got, err := decode(frame)
	want := Neighbor{Chassis: mac.String(), Port: "eth0", SystemName: "m1", SystemDescription: "Orlop OS", Capabilities: []string{"station"}, TTL: 120}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// FuzzDecode checks that no frame causes a panic, a number above its maximum, or a text that is too
// long or contains other characters than printable ASCII.
func FuzzDecode(f *testing.F) {
	f.Add(frameOf(chassis, port, ttl, end))
	f.Add(frameOf(chassis, port, ttl, tlv(typeManagement, "\x05\x01\x0a\x00\x00\x02"), tlv(typeOrganization, "\x00\x80\xc2\x01\x00\x64"), end))
	f.Fuzz(func(t *testing.T, frame []byte) {
		n, err := decode(frame)
		if err != nil {
			return
		}
		if len(n.Management) > maxManagement || n.TTL > 65535 || n.VLAN > 4094 {
			t.Errorf("%+v", n)
		}
		for _, text := range []string{n.Chassis, n.Port, n.PortDescription, n.SystemName, n.SystemDescription} {
			if len(text) > 512 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%q", text)
			}
		}
	})
}
