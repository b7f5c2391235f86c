package vm

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// etherVLAN is the EtherType of a frame with a VLAN tag (IEEE 802.1Q).
const etherVLAN = 0x8100

// vlanTag is the length of a VLAN tag in bytes.
const vlanTag = 4

// PortVLANs are the VLANs of a port of the switch. The zero value is a port that ignores tags: the
// switch forwards its frames unchanged, and only to other ports that ignore tags.
type PortVLANs struct {
	// Untagged is the VLAN of frames without a tag, 1 to 4094; 0: the switch drops frames without a
	// tag.
	Untagged int
	// Tagged are the VLANs of frames with a tag. A port with tagged VLANs is a trunk.
	Tagged []int
}

func (v PortVLANs) zero() bool { return v.Untagged == 0 && len(v.Tagged) == 0 }

func (v PortVLANs) check() error {
	for i, id := range append(slices.Clone(v.Tagged), max(v.Untagged, 1)) {
		if id < 1 || id > 4094 || i < len(v.Tagged) && (id == v.Untagged || slices.Contains(v.Tagged[:i], id)) {
			return fmt.Errorf("VLAN %d is not in 1 to 4094, or is given twice", id)
		}
	}
	return nil
}

// enter returns the VLAN of a frame that arrived at the port, and the frame without its tag. If the
// port ignores tags, the VLAN is 0 and the frame is unchanged. ok reports whether the port accepts
// the frame.
func (v PortVLANs) enter(f frame) (id int, out frame, ok bool) {
	if v.zero() {
		return 0, f, true
	}
	eth := f.eth()
	if binary.BigEndian.Uint16(eth[12:]) != etherVLAN {
		return v.Untagged, f, v.Untagged != 0
	}
	if len(eth) < ethHeader+vlanTag {
		return 0, nil, false
	}
	id = int(binary.BigEndian.Uint16(eth[14:]) & 0xfff)
	out = newFrame(len(eth) - vlanTag)
	copy(out.eth(), eth[:12])
	copy(out.eth()[12:], eth[12+vlanTag:])
	return id, out, slices.Contains(v.Tagged, id)
}

// leave returns a frame of the VLAN id in the form in which the port sends it, with or without a
// tag. It returns false if the port sends no frames of this VLAN.
func (v PortVLANs) leave(id int, f frame) (frame, bool) {
	switch {
	case v.zero() || id == 0:
		return f, v.zero() && id == 0
	case id == v.Untagged:
		return f, true
	case !slices.Contains(v.Tagged, id):
		return nil, false
	}
	eth := f.eth()
	out := newFrame(len(eth) + vlanTag)
	copy(out.eth(), eth[:12])
	binary.BigEndian.PutUint16(out.eth()[12:], etherVLAN)
	binary.BigEndian.PutUint16(out.eth()[14:], uint16(id))
	copy(out.eth()[16:], eth[12:])
	return out, true
}
