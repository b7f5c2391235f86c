package vm

import (
	"encoding/binary"
	"time"
)

const (
	etherLLDP = 0x88cc
	// lldpInterval is the time between two announcements. Real switches use 30 s.
	lldpInterval = 2 * time.Second
	lldpTTL      = 20 // seconds
)

// lldpGroup is the destination of LLDP (IEEE 802.1AB-2016, table 7-1).
var lldpGroup = macAddr{0x01, 0x80, 0xc2, 0, 0, 0x0e}

// SetLLDP makes the switch announce itself by LLDP on every port. name has at most 255 bytes; an
// empty name ends the announcements.
func (n *Network) SetLLDP(name string) { n.control.lldpName.Store(&name) }

// startLLDP sends the announcements of the network's switch. The returned function ends them.
func startLLDP(n *Network) (func(), error) {
	return repeat(n.clock.Outside(lldpInterval), nil, func() {
		if name := n.control.lldpName.Load(); name != nil && *name != "" {
			n.sw.announce(*name)
		}
	}), nil
}

// announce sends an LLDPDU to every port.
func (s *ethSwitch) announce(name string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for p := range s.ports {
		f := lldpFrame(name, p.name, s.vlans[p.name].Untagged)
		s.capture.write(f.eth())
		p.send(f, 0)
	}
}

// lldpFrame returns an LLDPDU of the switch for a port: chassis, port, TTL, system name and
// capability bridge. If vlan is not 0, the LLDPDU also has the VLAN of frames without a tag (IEEE
// 802.1Q, D.2.1).
func lldpFrame(name, port string, vlan int) frame {
	b := append(append([]byte{}, lldpGroup[:]...), switchSystem[:]...)
	b = binary.BigEndian.AppendUint16(b, etherLLDP)
	tlv := func(kind int, value ...byte) {
		b = append(binary.BigEndian.AppendUint16(b, uint16(kind<<9|len(value))), value...)
	}
	tlv(1, append([]byte{4}, switchSystem[:]...)...)
	tlv(2, append([]byte{5}, port...)...)
	tlv(3, 0, lldpTTL)
	tlv(5, []byte(name)...)
	tlv(7, 0, 4, 0, 4)
	if vlan != 0 {
		tlv(127, 0x00, 0x80, 0xc2, 1, byte(vlan>>8), byte(vlan))
	}
	tlv(0)
	f := newFrame(max(len(b), 60)) // the least size of an Ethernet frame
	copy(f.eth(), b)
	return f
}
