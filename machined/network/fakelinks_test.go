package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// named returns the link with this name; nil if there is none.
func (f *fake) named(name string) *Link {
	i := slices.IndexFunc(f.have.Links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &f.have.Links[i]
}

// doLink performs an operation on a link. It returns the errors that the kernel would return.
func (f *fake) doLink(o Op) error {
	switch o.Verb {
	case AddLink:
		return f.addLink(o)
	case DelLink:
		f.delLink(o.Index)
		return nil
	case SetVirtual:
		l := f.link(o.Index)
		for _, s := range l.Virtual.settings() {
			if s.fixed && slices.Contains(o.Change.Settings, s.name) {
				return fmt.Errorf("%v: %w", o, unix.EOPNOTSUPP)
			}
		}
		if b := o.Change.To.Bond; b != nil && b.Primary != "" && slices.Contains(o.Change.Settings, settingPrimary) {
			if p := f.named(b.Primary); p == nil || p.Master != l.Name {
				return fmt.Errorf("%v: the primary must be a member of the bond: %w", o, unix.EINVAL)
			}
		}
		if w := o.Change.To.WireGuard; w != nil && slices.Contains(o.Change.Settings, settingPort) && f.portTaken(l, w.Port) {
			return fmt.Errorf("%v: %w", o, unix.EADDRINUSE)
		}
		l.Virtual = o.Change.To
		return nil
	case SetMaster:
		return f.setMaster(o)
	case SetHardware:
		l := f.link(o.Index)
		if _, there := l.Settings[o.Name]; !there {
			return fmt.Errorf("%v: %w", o, unix.EOPNOTSUPP)
		}
		l.Settings[o.Name] = o.Value
		return nil
	case SetTags:
		f.link(o.Index).Tags = o.Value
		return nil
	}
	return f.setLink(o)
}

// portTaken returns true if a tunnel other than the link by has this UDP port.
func (f *fake) portTaken(by *Link, port int) bool {
	return port != 0 && slices.ContainsFunc(f.have.Links, func(l Link) bool {
		return l.Index != by.Index && l.Virtual.WireGuard != nil && l.Virtual.WireGuard.Port == port
	})
}

func (f *fake) addLink(o Op) error {
	if l := f.named(o.Link); l != nil {
		if l.Own && l.Kind == o.Change.To.Kind() {
			return nil
		}
		return fmt.Errorf("%v: %w", o, unix.EEXIST)
	}
	f.last++
	mtu := ethernetMTU
	if o.Change.To.WireGuard != nil {
		mtu = wireguardMTU
	}
	l := Link{
		Name: o.Link, Index: f.last, Kind: o.Change.To.Kind(), Own: true, Virtual: o.Change.To.created(), Ethernet: true,
		MTU: mtu, MAC: o.Change.MAC, Sysctls: defaultSysctls(o.Link),
	}
	if parent := o.Change.To.parent(); parent != "" {
		p := f.named(parent)
		if p == nil {
			return fmt.Errorf("%v: %w", o, unix.ENODEV)
		}
		l.MTU, l.MAC = p.MTU, p.MAC
	}
	if filters(l.Virtual) {
		l.Tags = noTags
	}
	f.have.Links = append(f.have.Links, l)
	return nil
}

func (f *fake) delLink(index int) {
	i := slices.IndexFunc(f.have.Links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return
	}
	gone := f.have.Links[i]
	for _, l := range slices.Clone(f.have.Links) {
		if l.Virtual.parent() == gone.Name && l.Virtual.parent() != "" {
			f.delLink(l.Index)
		}
		if l.Master == gone.Name {
			f.release(l.Index, gone.Kind)
		}
	}
	f.have.Links = slices.DeleteFunc(f.have.Links, func(l Link) bool { return l.Index == index })
	f.drop(index, func(netip.Addr) bool { return true })
}

func (f *fake) setMaster(o Op) error {
	l := f.link(o.Index)
	if l.Master == o.Name {
		return nil
	}
	if old := f.named(l.Master); old != nil {
		f.release(l.Index, old.Kind)
	}
	if o.Name == "" {
		return nil
	}
	master := f.named(o.Name)
	if master == nil {
		return fmt.Errorf("%v: %w", o, unix.ENODEV)
	}
	if parent := f.named(l.Virtual.parent()); master.Kind == kindBond && parent != nil && !parent.Up {
		return fmt.Errorf("%v: cannot set it up: %w", o, unix.ENETDOWN)
	}
	l.Master = o.Name
	switch master.Kind {
	case kindVRF:
		f.interrupt(l)
	case kindBond:
		f.goDown(l)
		f.before[l.Index], l.MTU = l.MTU, master.MTU
		l.Up = true
	}
	return nil
}

// release takes a member out of its master, which has the given kind.
func (f *fake) release(index int, kind string) {
	l := f.link(index)
	master := f.named(l.Master)
	l.Membership = Membership{}
	if kind == kindVRF {
		f.interrupt(l)
	}
	if kind != kindBond {
		return
	}
	f.goDown(l)
	l.MTU = f.before[index]
	if master != nil && master.Virtual.Bond.Primary == l.Name {
		b := *master.Virtual.Bond
		b.Primary = ""
		master.Virtual.Bond = &b
	}
}

// drop removes all routes of a link, and the addresses of the link for which selected returns true.
func (f *fake) drop(index int, selected func(netip.Addr) bool) {
	before := slices.Clone(f.have.Addresses)
	f.have.drop(index, selected)
	f.dropSourced(before)
}

// goDown sets a link and its VLANs down.
func (f *fake) goDown(l *Link) {
	l.Up, l.Carrier = false, false
	f.drop(l.Index, isIPv6Addr)
	for i := range f.have.Links {
		if o := &f.have.Links[i]; o.Virtual.parent() == l.Name {
			f.goDown(o)
		}
	}
}

// interrupt removes the routes and the IPv6 addresses of a link and of its VLANs, as the kernel
// does when it sets a link down and up again.
func (f *fake) interrupt(l *Link) {
	f.drop(l.Index, isIPv6Addr)
	for i := range f.have.Links {
		if o := &f.have.Links[i]; o.Virtual.parent() == l.Name {
			f.interrupt(o)
		}
	}
}

func (f *fake) setLink(o Op) error {
	l := f.link(o.Index)
	if f.mostMTU != 0 && o.MTU > f.mostMTU {
		return fmt.Errorf("%v: %w: mtu greater than device maximum", o, unix.EINVAL)
	}
	parent := f.named(l.Virtual.parent())
	switch {
	case o.Down:
		f.goDown(l)
	case o.Up && parent != nil && !parent.Up:
		return fmt.Errorf("%v: %w", o, unix.ENETDOWN)
	case o.Up:
		l.Up, l.Carrier = true, true
		for _, above := range f.have.Links {
			if above.Virtual.parent() == l.Name {
				// The kernel sets only those VLANs up again that were up before. The fake can set
				// all of them up, because in these tests each VLAN is up after the operations.
				f.named(above.Name).Up = true
			}
		}
	}
	if o.MTU == 0 {
		return nil
	}
	if parent != nil && o.MTU > parent.MTU {
		return fmt.Errorf("%v: %w", o, unix.ERANGE)
	}
	l.MTU = o.MTU
	for i := range f.have.Links {
		other := &f.have.Links[i]
		if other.Virtual.parent() == l.Name && other.MTU > l.MTU {
			other.MTU = l.MTU
		}
		if other.Master == l.Name && l.Kind == kindBond {
			other.MTU = l.MTU
		}
	}
	return nil
}

// cloneLinks returns copies of links that share no settings with them.
func cloneLinks(links []Link) []Link {
	links = slices.Clone(links)
	for i := range links {
		links[i].Sysctls, links[i].Settings = maps.Clone(links[i].Sysctls), maps.Clone(links[i].Settings)
	}
	return links
}
