package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Virtual is the definition of a link that the package creates. At most a single field is set; for
// hardware, no field is set.
type Virtual struct {
	Bond      *Bond
	VLAN      *VLAN
	Bridge    *Bridge
	VRF       *VRF
	Dummy     *Dummy
	WireGuard *WireGuard
}

// Bond is a link that combines other links (Documentation/networking/bonding.rst). Durations are
// whole milliseconds. A bond tests its members by MII or by ARP, and the interval of the other test
// is 0.
type Bond struct {
	Mode     string // "802.3ad", "active-backup" or "balance-xor"
	Rate     string // LACP rate, "slow" or "fast"; empty unless the mode is 802.3ad
	Hash     string // "layer2", "layer2+3" or "layer3+4"
	MinLinks int    // the bond has a carrier only if at least so many members have a carrier
	// Primary is the preferred member. In a configuration it is a selector; in a plan and in the
	// kernel it is a name. It is empty if no member is preferred.
	Primary string
	MII     time.Duration // interval of carrier tests; 0 turns them off
	// delay until the bond uses a member that has a carrier again (Up), and until it stops using a
	// member that has lost its carrier (Down); 0 with ARP
	Up, Down time.Duration
	ARP      time.Duration // interval of ARP requests; 0 turns them off
	Targets  []netip.Addr  // IPv4 addresses to which the ARP requests go; sorted
}

// VLAN is a link for the frames of its parent that have a certain tag (IEEE 802.1Q).
type VLAN struct {
	// Parent is the link that sends and receives the tagged frames. In a configuration it is a
	// selector; in a plan and in the kernel it is a name.
	Parent string
	ID     int
}

// Bridge is a link that forwards frames between its members. With Filtering, the bridge and each
// member take part only in the VLANs of their Tags.
type Bridge struct{ STP, Filtering bool }

// VRF is a link that gives its members a separate routing table (Documentation/networking/vrf.rst).
type VRF struct{ Table uint32 }

// Dummy is a link that drops all packets.
type Dummy struct{}

// kinds are the values of IFLA_INFO_KIND.
const (
	kindBond      = "bond"
	kindVLAN      = "vlan"
	kindBridge    = "bridge"
	kindVRF       = "vrf"
	kindDummy     = "dummy"
	kindWireGuard = "wireguard"
)

// Kind returns IFLA_INFO_KIND of the link; empty for hardware.
func (v Virtual) Kind() string {
	switch {
	case v.Bond != nil:
		return kindBond
	case v.VLAN != nil:
		return kindVLAN
	case v.Bridge != nil:
		return kindBridge
	case v.VRF != nil:
		return kindVRF
	case v.Dummy != nil:
		return kindDummy
	case v.WireGuard != nil:
		return kindWireGuard
	}
	return ""
}

// parent returns the name of the link below a VLAN; empty for the other links.
func (v Virtual) parent() string {
	if v.VLAN != nil {
		return v.VLAN.Parent
	}
	return ""
}

// setting is a setting of a link, for comparison and display.
type setting struct {
	name, value string
	// fixed means that the package must create the link again to change the setting. The kernel
	// rejects a change of a fixed setting, or accepts it only on a link that is down and has no
	// members.
	fixed bool
}

// Names of settings. A message to the kernel contains only the settings that change, because the
// kernel rejects some of the other settings even with their present values.
const (
	settingMode     = "mode"
	settingRate     = "LACP rate"
	settingHash     = "hash policy"
	settingMinLinks = "minimum of links"
	settingMonitor  = "monitor"
	settingPrimary  = "primary"
	settingParent   = "parent"
	settingID       = "ID"
	settingSTP      = "STP"
	settingFilter   = "VLAN filtering"
	settingTable    = "table"
)

// settings returns the settings of a link in the order of display.
func (v Virtual) settings() []setting {
	switch {
	case v.Bond != nil:
		return v.Bond.settings()
	case v.VLAN != nil:
		return []setting{{settingID, strconv.Itoa(v.VLAN.ID), true}, {settingParent, v.VLAN.Parent, true}}
	case v.Bridge != nil:
		return []setting{{settingSTP, onOff(v.Bridge.STP), false}, {settingFilter, onOff(v.Bridge.Filtering), false}}
	case v.VRF != nil:
		return []setting{{settingTable, strconv.FormatUint(uint64(v.VRF.Table), 10), true}}
	case v.WireGuard != nil:
		return v.WireGuard.settings()
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func (b *Bond) settings() []setting {
	return []setting{
		// Mode and rate can change only on a bond that is down. The mode can change only on a bond
		// without members (bond_options.c).
		{settingMode, b.Mode, true}, {settingRate, b.Rate, true},
		{settingMonitor, b.monitor(), false}, {settingHash, b.Hash, false},
		{settingMinLinks, strconv.Itoa(b.MinLinks), false}, {settingPrimary, b.Primary, false},
	}
}

// monitor describes how the bond monitors its members.
func (b *Bond) monitor() string {
	if b.ARP == 0 {
		return fmt.Sprintf("MII every %v, delays %v and %v", b.MII, b.Up, b.Down)
	}
	var targets []string
	for _, t := range b.Targets {
		targets = append(targets, t.String())
	}
	return fmt.Sprintf("ARP every %v of %s", b.ARP, strings.Join(targets, " "))
}

// String describes the link for the operator.
func (v Virtual) String() string {
	parts := []string{v.Kind()}
	for _, s := range v.settings() {
		if s.value != "" {
			parts = append(parts, s.name+" "+s.value)
		}
	}
	return strings.Join(parts, ", ")
}

// changed compares the settings of a link with a wanted link of the same kind. It returns the names
// of the settings that differ: first the fixed settings, then the settings that can change on an
// existing link.
func (v Virtual) changed(want Virtual) (fixed, live []string) {
	has, wants := v.settings(), want.settings()
	for _, s := range wants {
		i := slices.IndexFunc(has, func(h setting) bool { return h.name == s.name })
		switch {
		case i >= 0 && has[i].value == s.value:
		case s.fixed:
			fixed = append(fixed, s.name)
		default:
			live = append(live, s.name)
		}
	}
	for _, h := range has {
		if !slices.ContainsFunc(wants, func(s setting) bool { return s.name == h.name }) {
			live = append(live, h.name)
		}
	}
	return fixed, live
}

// created returns the definition of a link directly after its creation. Later operations set the
// primary member of a bond and all settings of WireGuard.
func (v Virtual) created() Virtual {
	switch {
	case v.Bond != nil:
		b := *v.Bond
		b.Primary = ""
		v.Bond = &b
	case v.WireGuard != nil:
		v.WireGuard = &WireGuard{}
	}
	return v
}

// values describes the settings with the given names for the operator. A name without a setting,
// for example the name of a peer that is no longer wanted, is called removed.
func (v Virtual) values(names []string) string {
	var parts []string
	for _, name := range names {
		i := slices.IndexFunc(v.settings(), func(s setting) bool { return s.name == name })
		switch {
		case i < 0:
			parts = append(parts, name+" removed")
		case v.settings()[i].value == "":
			parts = append(parts, name+" none")
		default:
			parts = append(parts, name+" "+v.settings()[i].value)
		}
	}
	return strings.Join(parts, ", ")
}
