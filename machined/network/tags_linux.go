package network

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Constants of include/uapi/linux/if_bridge.h and rtnetlink.h, which golang.org/x/sys does not
// define.
const (
	bridgeFlags      = 0 // IFLA_BRIDGE_FLAGS
	bridgeVLANInfo   = 2 // IFLA_BRIDGE_VLAN_INFO, struct bridge_vlan_info: flags, VLAN ID
	flagsSelf        = 2 // BRIDGE_FLAGS_SELF: the message is for the bridge itself
	vlanPVID         = 2 // BRIDGE_VLAN_INFO_PVID: VLAN of received frames without a tag
	vlanUntagged     = 4 // BRIDGE_VLAN_INFO_UNTAGGED: sent without a tag
	filterBridgeVLAN = 2 // RTEXT_FILTER_BRVLAN
)

// readTags sets the Tags in links, for bridges with VLAN filtering and their members. It encodes
// the messages itself, because the library has no messages for bridges.
func (k *Kernel) readTags(links []Link) error {
	filtering := map[string]bool{}
	for _, l := range links {
		if l.Virtual.Bridge != nil && l.Virtual.Bridge.Filtering {
			filtering[l.Name] = true
		}
	}
	if len(filtering) == 0 {
		return nil
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_EXT_MASK, filterBridgeVLAN)
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	msgs, err := k.addr.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
		Data:   append(bridgeHeader(0), attrs...),
	})
	if err != nil {
		return fmt.Errorf("bridges: cannot list the VLANs: %w", err)
	}
	tags := map[int]string{}
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		if tags[int(binary.NativeEndian.Uint32(m.Data[4:8]))], err = decodeTags(m.Data[unix.SizeofIfInfomsg:]); err != nil {
			return fmt.Errorf("bridges: cannot read the kernel's answer: %w", err)
		}
	}
	for i, l := range links {
		if filtering[l.Name] || filtering[l.Master] {
			links[i].Tags = noTags
			if t := tags[l.Index]; t != "" {
				links[i].Tags = t
			}
		}
	}
	return nil
}

// bridgeHeader returns the header of a message about the VLANs of a link, struct ifinfomsg.
func bridgeHeader(index int) []byte {
	head := make([]byte, unix.SizeofIfInfomsg)
	head[0] = unix.AF_BRIDGE
	binary.NativeEndian.PutUint32(head[4:8], uint32(index))
	return head
}

// decodeTags returns the Tags from the attributes of a link; noTags if the link is in no VLAN.
func decodeTags(attrs []byte) (string, error) {
	var ids []int
	untagged := 0
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return "", err
	}
	for ad.Next() {
		if ad.Type() != unix.IFLA_AF_SPEC {
			continue
		}
		ad.Nested(func(nad *netlink.AttributeDecoder) error {
			for nad.Next() {
				if b := nad.Bytes(); nad.Type() == bridgeVLANInfo && len(b) >= 4 {
					id := int(binary.NativeEndian.Uint16(b[2:4]))
					if binary.NativeEndian.Uint16(b[0:2])&vlanPVID != 0 {
						untagged = id
					}
					ids = append(ids, id)
				}
			}
			return nil
		})
	}
	return Tags(ids, untagged), ad.Err()
}

// setTags adds and changes the wanted VLANs of a link, and then removes the other VLANs.
func (k *Kernel) setTags(o Op) error {
	links, err := k.readLinks()
	if err != nil {
		return err
	}
	if err := k.readTags(links); err != nil {
		return err
	}
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == o.Index })
	if i < 0 {
		return unix.ENODEV
	}
	have, want := parseTags(links[i].Tags), parseTags(o.Value)
	self := links[i].Virtual.Bridge != nil && links[i].Master == ""
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if untagged, there := have[id]; !there || untagged != want[id] {
			if err := k.sendTag(unix.RTM_SETLINK, o.Index, id, want[id], self); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(have)) {
		if _, stays := want[id]; !stays {
			if err := k.sendTag(unix.RTM_DELLINK, o.Index, id, false, self); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendTag adds a VLAN to a link (RTM_SETLINK) or removes it (RTM_DELLINK). self is true for the
// bridge itself, and false for a member.
func (k *Kernel) sendTag(kind netlink.HeaderType, index, id int, untagged, self bool) error {
	info := make([]byte, 4)
	if untagged {
		binary.NativeEndian.PutUint16(info[0:2], vlanPVID|vlanUntagged)
	}
	binary.NativeEndian.PutUint16(info[2:4], uint16(id))
	ae := netlink.NewAttributeEncoder()
	ae.Nested(unix.IFLA_AF_SPEC, func(nae *netlink.AttributeEncoder) error {
		if self {
			nae.Uint16(bridgeFlags, flagsSelf)
		}
		nae.Bytes(bridgeVLANInfo, info)
		return nil
	})
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	_, err = k.addr.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(bridgeHeader(index), attrs...),
	})
	return err
}
