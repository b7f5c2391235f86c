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
	Bond *Bond
	VLAN *VLAN
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

// kinds are the values of IFLA_INFO_KIND.
const (
	kindBond = "bond"
	kindVLAN = "vlan"
)

// Kind returns IFLA_INFO_KIND of the link; empty for hardware.
func (v Virtual) Kind() string {
	switch {
	case v.Bond != nil:
		return kindBond
	case v.VLAN != nil:
		return kindVLAN
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
)

// settings returns the settings of a link in the order of display.
func (v Virtual) settings() []setting {
	switch {
	case v.Bond != nil:
		return v.Bond.settings()
	case v.VLAN != nil:
		return []setting{{settingID, strconv.Itoa(v.VLAN.ID), true}, {settingParent, v.VLAN.Parent, true}}
	}
	return nil
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
// wanted link, those with a fixed value first.
func (v Virtual) changed(want Virtual) (fixed, live []string) {
	has := v.settings()
	for i, s := range want.settings() {
		switch {
		case has[i].value == s.value:
		case s.fixed:
			fixed = append(fixed, s.name)
		default:
			live = append(live, s.name)
		}
	}
	return fixed, live
}

// created returns what the kernel has after the creation of a link: settings that need the members
// follow.
func (v Virtual) created() Virtual {
	if v.Bond != nil {
		b := *v.Bond
		b.Primary = ""
		v.Bond = &b
	}
	return v
}

// values describes some settings.
func (v Virtual) values(names []string) string {
	var parts []string
	for _, s := range v.settings() {
		if slices.Contains(names, s.name) {
			parts = append(parts, strings.TrimSpace(s.name+" "+s.value))
		}
	}
	return strings.Join(parts, ", ")
}
