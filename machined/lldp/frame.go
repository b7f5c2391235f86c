package lldp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// etherType is the EtherType of LLDP (IEEE 802.1AB-2016, 7.4).
const etherType = 0x88cc

// maxFrame is the size of the largest frame that is read, in bytes: an Ethernet header and 1500
// bytes. The kernel cuts a longer frame, which then cannot be decoded.
const maxFrame = 14 + 1500

// nearestBridge is the group address that no bridge forwards (IEEE 802.1AB-2016, table 7-1).
var nearestBridge = net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0x0e}

// Types of TLVs (IEEE 802.1AB-2016, table 8-1).
const (
	typeEnd = iota
	typeChassis
	typePort
	typeTTL
	typePortDescription
	typeSystemName
	typeSystemDescription
	typeCapabilities
	typeManagement
	typeOrganization = 127
)

// Subtypes of the chassis (8.5.2) and of the port (8.5.3). They number the same kind differently.
const (
	chassisMAC      = 4
	chassisAddress  = 5
	portMAC         = 3
	portAddress     = 4
	portName        = 5 // ifName of RFC 2863
	capabilityHost  = 1 << 7
	familyIPv4      = 1 // IANA address family numbers
	familyIPv6      = 2
	maxManagement   = 4
	subtypePortVLAN = 1
)

// ieee8021 is the organization of the TLV with the VLAN of the port (IEEE 802.1Q, D.2.1).
var ieee8021 = []byte{0x00, 0x80, 0xc2}

// capabilities are the names of the bits of a system's capabilities (table 8-4), lowest bit first.
var capabilities = []string{"other", "repeater", "bridge", "access point", "router", "telephone", "cable device", "station"}

// Neighbor is the content of a frame about its sender. Its texts are printable and cut after 255
// bytes; a TLV has at most 511.
type Neighbor struct {
	Link              string `json:"link"`    // of this machine
	Chassis           string `json:"chassis"` // a MAC, an address, or a name
	Port              string `json:"port"`    // the port of the neighbor
	PortDescription   string `json:"portDescription,omitempty"`
	SystemName        string `json:"systemName,omitempty"`
	SystemDescription string `json:"systemDescription,omitempty"`
	// VLAN of frames without a tag, 1 to 4094; 0: unknown
	VLAN         int          `json:"vlan,omitempty"`
	Capabilities []string     `json:"capabilities,omitempty"`
	Management   []netip.Addr `json:"management,omitempty"`
	TTL          int          `json:"ttl"` // seconds, 0 to 65535; 0: the neighbor leaves
	Expires      time.Time    `json:"expires,omitzero"`
}

// decode parses an Ethernet frame. It reads each byte at most twice, and its result is at most as
// large as the frame.
func decode(frame []byte) (Neighbor, error) {
	if len(frame) < 14 || binary.BigEndian.Uint16(frame[12:]) != etherType {
		return Neighbor{}, errors.New("LLDP: not a frame of LLDP")
	}
	var n Neighbor
	rest := frame[14:]
	for i := 0; ; i++ {
		kind, value, after, err := nextTLV(rest)
		if err != nil {
			return Neighbor{}, err
		}
		// The first three TLVs have a fixed order, and none of them occurs twice (9.2.7.7.1).
		if first := kind >= typeChassis && kind <= typeTTL; i < 3 && kind != typeChassis+i || i >= 3 && first {
			return Neighbor{}, fmt.Errorf("LLDP: TLV %d has type %d; expected chassis, port and TTL first, each once", i+1, kind)
		}
		if kind == typeEnd {
			return n, nil
		}
		if err := n.setTLV(kind, value); err != nil {
			return Neighbor{}, err
		}
		rest = after
	}
}

// nextTLV splits the first TLV off (8.4): 7 bits of type, 9 bits of length, the value.
func nextTLV(data []byte) (kind int, value, rest []byte, err error) {
	if len(data) < 2 {
		return 0, nil, nil, errors.New("LLDP: the frame ends without an end TLV")
	}
	head := binary.BigEndian.Uint16(data)
	kind, length := int(head>>9), int(head&0x1ff)
	if len(data) < 2+length {
		return 0, nil, nil, fmt.Errorf("LLDP: TLV of type %d: has %d bytes, and the frame contains %d", kind, length, len(data)-2)
	}
	return kind, data[2 : 2+length], data[2+length:], nil
}

// setTLV stores the value of a TLV. An optional TLV with an unusable value is ignored, as the
// standard requires (9.2.7.7.2).
func (n *Neighbor) setTLV(kind int, value []byte) error {
	switch kind {
	case typeChassis, typePort:
		if len(value) < 2 || len(value) > 256 {
			return fmt.Errorf("LLDP: TLV of type %d: has %d bytes; expected 2 to 256", kind, len(value))
		}
		if kind == typeChassis {
			n.Chassis = identifier(value, chassisMAC, chassisAddress)
		} else {
			n.Port = identifier(value, portMAC, portAddress)
		}
	case typeTTL:
		if len(value) != 2 {
			return fmt.Errorf("LLDP: TLV of type %d: has %d bytes; expected 2", kind, len(value))
		}
		n.TTL = int(binary.BigEndian.Uint16(value))
	case typePortDescription:
		n.PortDescription = printable(value)
	case typeSystemName:
		n.SystemName = printable(value)
	case typeSystemDescription:
		n.SystemDescription = printable(value)
	case typeCapabilities:
		if len(value) == 4 {
			n.Capabilities = enabled(binary.BigEndian.Uint16(value[2:]))
		}
	case typeManagement:
		// the length of the address with its family, the family, the address
		if len(value) > 1 && len(value) > int(value[0]) && len(n.Management) < maxManagement {
			if a, ok := address(value[1 : 1+int(value[0])]); ok {
				n.Management = append(n.Management, a)
			}
		}
	case typeOrganization:
		if len(value) == 6 && bytes.HasPrefix(value, ieee8021) && value[3] == subtypePortVLAN {
			if id := int(binary.BigEndian.Uint16(value[4:])); id < 4095 {
				n.VLAN = id
			}
		}
	}
	return nil
}

// identifier returns a chassis or a port as text. value is a subtype, and then a value of this
// subtype.
func identifier(value []byte, mac, network byte) string {
	switch subtype, id := value[0], value[1:]; {
	case subtype == mac && len(id) == 6:
		return net.HardwareAddr(id).String()
	case subtype == mac:
		return hex.EncodeToString(id)
	case subtype == network:
		if a, ok := address(id); ok {
			return a.String()
		}
		return hex.EncodeToString(id)
	default:
		return printable(id)
	}
}

// address decodes an address family number and an address.
func address(data []byte) (netip.Addr, bool) {
	if len(data) == 5 && data[0] == familyIPv4 || len(data) == 17 && data[0] == familyIPv6 {
		return netip.AddrFromSlice(data[1:])
	}
	return netip.Addr{}, false
}

// printable makes a text of a neighbor safe, and cuts it after 255 bytes. Some devices end texts
// with a zero byte.
func printable(value []byte) string {
	value = bytes.TrimRight(value[:min(len(value), 255)], "\x00")
	return strings.TrimSpace(sanitize.ASCII(string(value), 255))
}

func enabled(bits uint16) []string {
	var out []string
	for i, name := range capabilities {
		if bits&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// Announcement is the content of a frame about this machine.
type Announcement struct {
	Name string // of the machine, 1 to 255 bytes
	Link string
	MAC  net.HardwareAddr // of the link, 6 bytes
	TTL  time.Duration    // whole seconds, 0 to 65535 s
}

// encode makes the frame of an announcement. The frame contains no version, because every host on
// the link can read it.
func encode(a Announcement) []byte {
	out := append(append([]byte{}, nearestBridge...), a.MAC...)
	out = binary.BigEndian.AppendUint16(out, etherType)
	out = appendTLV(out, typeChassis, append([]byte{chassisMAC}, a.MAC...))
	out = appendTLV(out, typePort, append([]byte{portName}, a.Link...))
	out = appendTLV(out, typeTTL, binary.BigEndian.AppendUint16(nil, uint16(a.TTL/time.Second)))
	out = appendTLV(out, typeSystemName, []byte(a.Name))
	out = appendTLV(out, typeSystemDescription, []byte("Orlop OS"))
	out = appendTLV(out, typeCapabilities, []byte{0, capabilityHost, 0, capabilityHost})
	return appendTLV(out, typeEnd, nil)
}

// appendTLV appends a TLV with a value of at most 511 bytes.
func appendTLV(out []byte, kind int, value []byte) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(kind<<9|len(value))), value...)
}
