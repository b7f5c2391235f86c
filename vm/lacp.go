package vm

import (
	"encoding/binary"
	"errors"
	"time"
)

// The switch's side of LACP (IEEE 802.1AX-2020, clause 6.4). The switch sends an LACPDU only as the
// answer to an LACPDU.

const (
	etherSlow   = 0x8809 // Slow Protocols
	lacpSubtype = 1
	lacpVersion = 1
	lacpLength  = 110 // of an LACPDU without the Ethernet header
	lacpInfoLen = 20  // of an actor or partner TLV

	lacpActive       = 1 << 0
	lacpShort        = 1 << 1 // the sender requests an LACPDU each second
	lacpAggregation  = 1 << 2
	lacpSync         = 1 << 3
	lacpCollecting   = 1 << 4
	lacpDistributing = 1 << 5

	// lacpTimeout is the time without an LACPDU after which the switch does not use a port: three
	// periods of a second, and a further second because the computer may be busy.
	lacpTimeout = 4 * time.Second
)

// slowGroup is the destination address of Slow Protocols, a link-local group address.
var slowGroup = macAddr{0x01, 0x80, 0xc2, 0, 0, 2}

// linkLocal reports whether m is a link-local group address: 01:80:c2:00:00:00 to
// 01:80:c2:00:00:0f. Bridges do not forward frames to these addresses (IEEE 802.1Q, table 8-1).
func (m macAddr) linkLocal() bool {
	return m[0] == 0x01 && m[1] == 0x80 && m[2] == 0xc2 && m[3] == 0 && m[4] == 0 && m[5] < 16
}

// lacpInfo describes a side of a link, the actor or the partner, in an LACPDU.
type lacpInfo struct {
	SystemPriority uint16
	System         macAddr
	Key            uint16
	PortPriority   uint16
	Port           uint16
	State          uint8
}

// lacpdu is an LACPDU. Actor describes its sender, and Partner the receiver as the sender knows it.
type lacpdu struct{ Actor, Partner lacpInfo }

func (i lacpInfo) append(b []byte, kind byte) []byte {
	b = append(b, kind, lacpInfoLen)
	b = binary.BigEndian.AppendUint16(b, i.SystemPriority)
	b = append(b, i.System[:]...)
	b = binary.BigEndian.AppendUint16(b, i.Key)
	b = binary.BigEndian.AppendUint16(b, i.PortPriority)
	b = binary.BigEndian.AppendUint16(b, i.Port)
	return append(b, i.State, 0, 0, 0)
}

func parseLACPInfo(b []byte) lacpInfo {
	return lacpInfo{
		SystemPriority: binary.BigEndian.Uint16(b[2:]), System: macAddr(b[4:10]), Key: binary.BigEndian.Uint16(b[10:]),
		PortPriority: binary.BigEndian.Uint16(b[12:]), Port: binary.BigEndian.Uint16(b[14:]), State: b[16],
	}
}

// frame returns the LACPDU as a frame from a port with the MAC src.
func (p lacpdu) frame(src macAddr) frame {
	b := make([]byte, 0, ethHeader+lacpLength)
	b = append(append(b, slowGroup[:]...), src[:]...)
	b = binary.BigEndian.AppendUint16(b, etherSlow)
	b = append(b, lacpSubtype, lacpVersion)
	b = p.Partner.append(p.Actor.append(b, 1), 2)
	b = append(b, 3, 16) // collector TLV without a delay; the terminator and the padding are zeros
	f := newFrame(ethHeader + lacpLength)
	copy(f.eth(), b)
	return f
}

var errNoLACPDU = errors.New("not an LACPDU")

// parseLACPDU parses an Ethernet frame. It fails if the frame is not an LACPDU.
func parseLACPDU(eth []byte) (lacpdu, error) {
	if len(eth) < ethHeader+2+2*lacpInfoLen || binary.BigEndian.Uint16(eth[12:]) != etherSlow || eth[ethHeader] != lacpSubtype {
		return lacpdu{}, errNoLACPDU
	}
	actor, partner := eth[ethHeader+2:], eth[ethHeader+2+lacpInfoLen:]
	if actor[0] != 1 || actor[1] != lacpInfoLen || partner[0] != 2 || partner[1] != lacpInfoLen {
		return lacpdu{}, errNoLACPDU
	}
	return lacpdu{parseLACPInfo(actor), parseLACPInfo(partner)}, nil
}

// bundle is a group of ports that the switch aggregates by LACP.
type bundle struct {
	key   uint16
	ports map[string]*bundlePort // by the name of the port
	order []string               // names of the ports
}

// bundlePort is a port of a bundle, with the last LACPDU of its other end.
type bundlePort struct {
	number uint16
	other  lacpInfo
	heard  time.Time // time of the last LACPDU; zero: there was none
}

// switchSystem is the hardware address of the switch, which identifies it in LACP and LLDP.
var switchSystem = macAddr{0x52, 0x54, 0x4f, 0xff, 0xff, 0xff}

func newBundle(key uint16, names []string) *bundle {
	b := &bundle{key: key, ports: map[string]*bundlePort{}, order: names}
	for i, name := range names {
		b.ports[name] = &bundlePort{number: uint16(i + 1)}
	}
	return b
}

// answer records the LACPDU in that arrived on a port, and returns the answer. The switch is in
// sync with the port if the port can be aggregated with the other ports (agrees).
func (b *bundle) answer(port string, in lacpdu, now time.Time, timeout time.Duration) lacpdu {
	p := b.ports[port]
	p.other, p.heard = in.Actor, now
	own := lacpInfo{SystemPriority: 65535, System: switchSystem, Key: b.key, PortPriority: 255, Port: p.number, State: lacpActive | lacpShort | lacpAggregation}
	if b.agrees(port, now, timeout) {
		own.State |= lacpSync
		if in.Actor.State&lacpSync != 0 {
			own.State |= lacpCollecting | lacpDistributing
		}
	}
	return lacpdu{Actor: own, Partner: in.Actor}
}

// agrees reports whether the other end of a port allows aggregation and belongs to the bond of the
// bundle. This is the bond (system and key) at the other end of the first working port. A port
// works if an LACPDU has arrived within timeout and the other end allows aggregation.
func (b *bundle) agrees(port string, now time.Time, timeout time.Duration) bool {
	p := b.ports[port]
	if p.other.State&lacpAggregation == 0 {
		return false
	}
	for _, name := range b.order {
		o := b.ports[name]
		if !o.heard.IsZero() && now.Sub(o.heard) < timeout && o.other.State&lacpAggregation != 0 {
			return o.other.System == p.other.System && o.other.Key == p.other.Key
		}
	}
	return false
}

// active returns the names of the ports that carry frames: both ends are in sync, and an LACPDU has
// arrived within timeout.
func (b *bundle) active(now time.Time, timeout time.Duration) (names []string) {
	for _, name := range b.order {
		p := b.ports[name]
		if !p.heard.IsZero() && now.Sub(p.heard) < timeout && p.other.State&lacpSync != 0 && b.agrees(name, now, timeout) {
			names = append(names, name)
		}
	}
	return names
}
