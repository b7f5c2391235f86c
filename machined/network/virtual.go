package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Virtual is the definition of a link that the package creates. At most one field is set; none for
// hardware.
type Virtual struct {
	Bond      *Bond
	VLAN      *VLAN
	Bridge    *Bridge
	VRF       *VRF
	Dummy     *Dummy
	WireGuard *WireGuard
}

// Bond is a link that consists of other links (Documentation/networking/bonding.rst). Intervals are
// whole milliseconds. Either MII or ARP is not 0.
type Bond struct {
	Mode     string // "802.3ad", "active-backup" or "balance-xor"
	Rate     string // LACP rate, "slow" or "fast"; empty unless the mode is 802.3ad
	Hash     string // "layer2", "layer2+3" or "layer3+4"
	MinLinks int    // members with a carrier that the bond needs for its own carrier
	// Primary is the preferred member: in a configuration a selector, in a plan and in the kernel
	// the name of a member; empty: none.
	Primary  string
	MII      time.Duration // interval of carrier tests; 0: off
	Up, Down time.Duration // delays before a member is used and not used; 0 with ARP
	ARP      time.Duration // interval of ARP requests; 0: off
	Targets  []netip.Addr  // IPv4 addresses that answer ARP; sorted
}

// VLAN is the part of a link with a tag (IEEE 802.1Q).
type VLAN struct {
	// Parent is the link with the tagged frames: in a configuration a selector, in a plan and in
	// the kernel a name.
	Parent string
	ID     int
}

// Bridge forwards frames between its members. With Filtering, each member and the bridge itself
// take part only in the VLANs of their Tags.
type Bridge struct{ STP, Filtering bool }

// VRF is a routing table of its own for its members (Documentation/networking/vrf.rst).
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
	// fixed means that the kernel rejects a change, or accepts it only from a link that is down and
	// has no members: the link must be created again.
	fixed bool
}

// Names of settings. A message to the kernel contains only the settings that change, because the
// kernel rejects some settings even with their present value.
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
		// The kernel changes both only on a bond that is down; the mode also needs a bond without
		// members (bond_options.c).
		{settingMode, b.Mode, true}, {settingRate, b.Rate, true},
		{settingMonitor, b.monitor(), false}, {settingHash, b.Hash, false},
		{settingMinLinks, strconv.Itoa(b.MinLinks), false}, {settingPrimary, b.Primary, false},
	}
}

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

// changed returns the names of the settings in which a link of the same kind differs from the
// wanted link: the fixed settings, and the others.
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

// created returns the definition of a link after its creation: settings that need the members or
// another interface of the kernel follow.
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

// values describes some settings; a setting that does not exist any more is removed.
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
