package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/jsimonetti/rtnetlink/v2/driver"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// modules has the kernel module for each kind of link.
var modules = map[string]string{
	kindBond: "bonding", kindVLAN: "8021q", kindBridge: "bridge", kindVRF: "vrf", kindDummy: "dummy", kindWireGuard: "wireguard",
}

// The kernel's numbers for the settings of a bond (include/uapi/linux/if_bonding.h).
var (
	bondModes  = map[string]driver.BondMode{"active-backup": driver.BondModeActiveBackup, "balance-xor": driver.BondModeBalanceXOR, "802.3ad": driver.BondMode802_3AD}
	bondRates  = map[string]driver.BondLacpRate{"slow": driver.BondLacpRateSlow, "fast": driver.BondLacpRateFast}
	bondHashes = map[string]driver.BondXmitHashPolicy{"layer2": driver.BondXmitHashPolicyLayer2, "layer2+3": driver.BondXmitHashPolicyLayer2_3, "layer3+4": driver.BondXmitHashPolicyLayer3_4}
)

// nameOf returns the name of a number of the kernel; empty for an unknown number.
func nameOf[T comparable](names map[string]T, number T) string {
	for name, n := range names {
		if n == number {
			return name
		}
	}
	return ""
}

// listNames returns the names of all links, by index, without their other properties.
func listNames(conn *rtnetlink.Conn) (map[int]string, error) {
	links, err := conn.Link.List()
	if err != nil {
		return nil, fmt.Errorf("links: cannot list: %w", err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		if l.Attributes != nil {
			names[int(l.Index)] = l.Attributes.Name
		}
	}
	return names, nil
}

// linkIndex returns the index of a link. It fails with ENODEV if the link does not exist.
func (k *Kernel) linkIndex(name string) (int, error) {
	names, err := listNames(k.route)
	if err != nil {
		return 0, err
	}
	for index, n := range names {
		if n == name {
			return index, nil
		}
	}
	return 0, fmt.Errorf("link %s does not exist: %w", name, unix.ENODEV)
}

// found returns the operation with the real indexes of its links. It looks up a link with a
// negative index by name, because an earlier operation has created the link.
func (k *Kernel) found(o Op) (Op, error) {
	var err error
	find := func(index *int, name string) {
		if *index < 0 && err == nil {
			*index, err = k.linkIndex(name)
		}
	}
	if o.Verb != AddLink {
		find(&o.Index, o.Link)
	}
	find(&o.Route.Index, o.Route.Link)
	o.Route.Hops = slices.Clone(o.Route.Hops)
	for i := range o.Route.Hops {
		find(&o.Route.Hops[i].Index, o.Route.Hops[i].Link)
	}
	return o, err
}

// addLink creates a link and sets the mark in the same message, so an interruption cannot leave a
// link without the mark. If the kernel does not know the kind, addLink loads its module. The kernel
// cannot load the module itself, because the system has no modprobe.
func (k *Kernel) addLink(o Op) error {
	err := k.sendLink(o)
	if errors.Is(err, unix.EOPNOTSUPP) && k.loadModules != nil {
		if err := k.loadModules(modules[o.Change.To.Kind()]); err != nil {
			return err
		}
		err = k.sendLink(o)
	}
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	links, readErr := k.readLinks()
	if readErr != nil {
		return readErr
	}
	for _, l := range links {
		if l.Name != o.Link {
			continue
		}
		if fixed, _ := l.Virtual.changed(o.Change.To); l.Own && l.Kind == o.Change.To.Kind() && len(fixed) == 0 {
			return nil
		}
		return fmt.Errorf("another component has a link of this name; configure another name: %w", unix.EEXIST)
	}
	return err
}

// sendLink sends the message that creates a link.
func (k *Kernel) sendLink(o Op) error {
	m, err := k.linkMessage(o.Change.To, o.Change.To.allSettings())
	if err != nil {
		return err
	}
	m.Attributes.Name = o.Link
	if o.Change.MAC != "" {
		if m.Attributes.Address, err = net.ParseMAC(o.Change.MAC); err != nil {
			return err
		}
	}
	if parent := o.Change.To.parent(); parent != "" {
		index, err := k.linkIndex(parent)
		if err != nil {
			return err
		}
		m.Attributes.Type = uint32(index) // IFLA_LINK, which the library calls Type
	}
	data, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	// The library cannot encode IFLA_GROUP.
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_GROUP, Protocol)
	group, err := ae.Encode()
	if err != nil {
		return err
	}
	_, err = k.addr.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_NEWLINK, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
		Data:   append(data, group...),
	})
	return err
}

// allSettings returns the names of the settings in the message that creates a link. It omits VLAN
// filtering if it is off, because a kernel without VLAN filtering rejects even the value "off".
func (v Virtual) allSettings() (names []string) {
	for _, s := range v.created().settings() {
		if s.value != "" && !(s.name == settingFilter && !v.Bridge.Filtering) {
			names = append(names, s.name)
		}
	}
	return names
}

// linkMessage returns a message with the named settings of a link.
func (k *Kernel) linkMessage(v Virtual, settings []string) (*rtnetlink.LinkMessage, error) {
	info := &rtnetlink.LinkInfo{Kind: v.Kind()}
	switch {
	case v.Bond != nil:
		data, err := k.bondData(v.Bond, settings)
		if err != nil {
			return nil, err
		}
		info.Data = data
	case v.VLAN != nil:
		id := uint16(v.VLAN.ID)
		info.Data = &driver.Vlan{ID: &id}
	case v.Bridge != nil:
		info.Data = bridgeData(v.Bridge, settings)
	case v.VRF != nil:
		ae := netlink.NewAttributeEncoder()
		ae.Uint32(iflaVRFTable, v.VRF.Table)
		data, err := ae.Encode()
		if err != nil {
			return nil, err
		}
		info.Data = &rtnetlink.LinkData{Name: kindVRF, Data: data}
	}
	return &rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Info: info}}, nil
}

// bondData returns the named settings of a bond for a message. settingMonitor sets the interval and
// both delays together: the kernel stores the delays as multiples of the MII interval, so a new
// interval would change them. Setting the interval of a monitor turns the other monitor off.
func (k *Kernel) bondData(b *Bond, settings []string) (*driver.Bond, error) {
	// BondModeUnknown means that the mode is not sent
	data := &driver.Bond{Mode: driver.BondModeUnknown}
	for _, s := range settings {
		switch s {
		case settingMode:
			data.Mode = bondModes[b.Mode]
		case settingRate:
			data.AdLacpRate = new(bondRates[b.Rate])
		case settingHash:
			data.XmitHashPolicy = new(bondHashes[b.Hash])
		case settingMinLinks:
			data.MinLinks = new(uint32(b.MinLinks))
		case settingMonitor:
			if b.ARP == 0 {
				data.Miimon, data.UpDelay, data.DownDelay = milliseconds(b.MII), milliseconds(b.Up), milliseconds(b.Down)
				continue
			}
			data.ArpInterval, data.ArpIpTargets = milliseconds(b.ARP), []net.IP{}
			for _, t := range b.Targets {
				data.ArpIpTargets = append(data.ArpIpTargets, t.AsSlice())
			}
		case settingPrimary:
			index := 0 // 0 means that the bond has no primary member
			if b.Primary != "" {
				var err error
				if index, err = k.linkIndex(b.Primary); err != nil {
					return nil, err
				}
			}
			data.Primary = new(uint32(index))
		}
	}
	return data, nil
}

// iflaVRFTable is IFLA_VRF_TABLE of include/uapi/linux/if_link.h.
const iflaVRFTable = 1

// bridgeData returns the named settings of a bridge for a message. With VLAN filtering, it also
// sets the default VLAN to none. Otherwise the kernel would put each new member into VLAN 1,
// without a tag.
func bridgeData(b *Bridge, settings []string) *driver.Bridge {
	data := &driver.Bridge{}
	for _, s := range settings {
		switch s {
		case settingSTP:
			data.StpState = new(driver.BridgeStpStateDisabled)
			if b.STP {
				data.StpState = new(driver.BridgeStpStateEnabled)
			}
		case settingFilter:
			if b.Filtering {
				data.VlanFiltering, data.VlanDefaultPvid = new(driver.BridgeEnableEnabled), new(uint16(0))
			} else {
				data.VlanFiltering = new(driver.BridgeEnableDisabled)
			}
		}
	}
	return data
}

func milliseconds(d time.Duration) *uint32 { return new(uint32(d.Milliseconds())) }

func (k *Kernel) setVirtual(o Op) error {
	if o.Change.To.WireGuard != nil {
		return k.setWireGuard(o)
	}
	m, err := k.linkMessage(o.Change.To, o.Change.Settings)
	if err != nil {
		return err
	}
	m.Index = uint32(o.Index)
	return k.route.Link.Set(m)
}

// setMaster moves a link into a bond, bridge or VRF, or out of it if Name is empty. A bond takes
// only a link that is down, so setMaster sets the link down before. A link that already belongs to
// the bond stays up.
func (k *Kernel) setMaster(o Op) error {
	links, err := k.readLinks()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == o.Index })
	if i < 0 || links[i].Master == o.Name {
		return nil
	}
	master := 0
	if o.Name != "" {
		if master, err = k.linkIndex(o.Name); err != nil {
			return err
		}
	}
	if o.Change.Kind == kindBond { // the kind of the new master
		if err := k.setLink(Op{Verb: SetLink, Index: o.Index, Down: true}); err != nil {
			return err
		}
	}
	return k.route.Link.Set(&rtnetlink.LinkMessage{
		Index: uint32(o.Index), Attributes: &rtnetlink.LinkAttributes{Master: new(uint32(master))},
	})
}

// readVirtual returns the definition of a link; empty for a kind that the package does not create.
func readVirtual(m rtnetlink.LinkMessage, names map[int]string) (v Virtual) {
	if m.Attributes.Info == nil {
		return v
	}
	switch data := m.Attributes.Info.Data.(type) {
	case *driver.Bond:
		v.Bond = readBond(data, names)
	case *driver.Vlan:
		v.VLAN = &VLAN{Parent: names[int(m.Attributes.Type)], ID: int(value(data.ID))}
	case *driver.Bridge:
		v.Bridge = &Bridge{STP: value(data.StpState) != driver.BridgeStpStateDisabled, Filtering: value(data.VlanFiltering) == driver.BridgeEnableEnabled}
	case *rtnetlink.LinkData:
		if ad, err := netlink.NewAttributeDecoder(data.Data); err == nil && m.Attributes.Info.Kind == kindVRF {
			for ad.Next() {
				if ad.Type() == iflaVRFTable {
					v.VRF = &VRF{Table: ad.Uint32()}
				}
			}
		}
	}
	switch m.Attributes.Info.Kind {
	case kindDummy:
		v.Dummy = &Dummy{}
	case kindWireGuard:
		v.WireGuard = &WireGuard{} // Kernel.Read reads the rest by readWireGuard
	}
	return v
}

func readBond(data *driver.Bond, names map[int]string) *Bond {
	interval := func(p *uint32) time.Duration { return time.Duration(value(p)) * time.Millisecond }
	b := &Bond{
		Mode: nameOf(bondModes, data.Mode), Hash: nameOf(bondHashes, value(data.XmitHashPolicy)), MinLinks: int(value(data.MinLinks)),
		Primary: names[int(value(data.Primary))],
		MII:     interval(data.Miimon), ARP: interval(data.ArpInterval),
	}
	if b.Mode == "802.3ad" {
		b.Rate = nameOf(bondRates, value(data.AdLacpRate))
	}
	if b.ARP == 0 {
		b.Up, b.Down = interval(data.UpDelay), interval(data.DownDelay)
		return b
	}
	for _, ip := range data.ArpIpTargets {
		if a := toAddr(ip); a.IsValid() {
			b.Targets = append(b.Targets, a)
		}
	}
	slices.SortFunc(b.Targets, netip.Addr.Compare)
	return b
}

// value returns the value of an optional attribute, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
