package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Change has the details of an operation on a link.
type Change struct {
	To       Virtual  // AddLink, SetVirtual: the whole new definition of the link
	Settings []string // SetVirtual: the names of the settings to change
	Kind     string   // DelLink: kind of the link; SetMaster: kind of the new master
	MAC      string   // AddLink: MAC; if it is empty, the kernel chooses
	// DelLink: the reason why the link is created again, empty if it is only deleted. SetHardware:
	// the effect of the change on the link, empty without an effect.
	Reason string
}

// linkDiff is the state of diffLinks. ops are the operations so far, and have is the state of the
// kernel after these operations.
type linkDiff struct {
	have Have
	want Want
	ops  []Op
}

// diffLinks returns the operations on links, the state of the kernel after them, and want with the
// indexes of links that are created again. The order is: old links, new links, sysctls, hardware
// settings, members, settings, VLANs, then up and MTU from the hardware upwards.
func diffLinks(have Have, want Want) ([]Op, Have, Want) {
	have.Links, want.Links = slices.Clone(have.Links), slices.Clone(want.Links)
	d := &linkDiff{have: have, want: want}
	d.delete()
	d.create()
	d.sysctls()
	d.hardware()
	d.members()
	d.settings()
	d.tags()
	for _, i := range bottomUp(d.want.Links) {
		d.upAndMTU(d.want.Links[i])
	}
	return d.ops, d.have, d.want
}

func (d *linkDiff) add(o Op) { d.ops = append(d.ops, o) }

// link returns the link with an index, or nil if the link disappeared after the plan. In this case
// the kernel sends another notification, which causes a new plan.
func (d *linkDiff) link(index int) *Link {
	i := slices.IndexFunc(d.have.Links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return nil
	}
	return &d.have.Links[i]
}

// delete adds the operations that delete links with the mark: links that are not wanted, and links
// that must be created again.
func (d *linkDiff) delete() {
	reasons := map[int]string{} // reasons to create a link again, by index of the links to delete
	for _, l := range d.have.Links {
		if !l.Own {
			continue
		}
		i := slices.IndexFunc(d.want.Links, func(w WantLink) bool { return w.Index == l.Index })
		if i < 0 {
			reasons[l.Index] = ""
		} else if fixed, _ := l.Virtual.changed(d.want.Links[i].Virtual); len(fixed) > 0 {
			reasons[l.Index] = strings.Join(fixed, " and ") + " cannot change live"
		}
	}
	if len(reasons) == 0 {
		return
	}
	// The kernel also deletes the VLANs above a deleted link.
	for again := true; again; {
		again = false
		for _, l := range d.have.Links {
			parent := slices.IndexFunc(d.have.Links, func(p Link) bool { return p.Name == l.Virtual.parent() && l.Virtual.parent() != "" })
			if _, known := reasons[l.Index]; known || parent < 0 {
				continue
			}
			if _, goes := reasons[d.have.Links[parent].Index]; goes {
				reasons[l.Index], again = fmt.Sprintf("link %s below it is deleted", d.have.Links[parent].Name), true
			}
		}
	}
	order := sortedLinks(d.have.Links)
	slices.Reverse(order) // upper links first: they were created later
	for _, l := range order {
		reason, goes := reasons[l.Index]
		if !goes {
			continue
		}
		wanted := slices.ContainsFunc(d.want.Links, func(w WantLink) bool { return w.Index == l.Index })
		if !wanted {
			reason = ""
		}
		if l.Own {
			d.add(Op{Verb: DelLink, Link: l.Name, Index: l.Index, Change: Change{Kind: l.Kind, Reason: reason}})
		}
		d.forget(l)
	}
}

// forget records that a link is deleted. It removes the link with its addresses and routes from
// have, and releases its members. If the link is wanted, its index in want becomes the index of a
// missing link.
func (d *linkDiff) forget(gone Link) {
	d.have.Links = slices.DeleteFunc(d.have.Links, func(l Link) bool { return l.Index == gone.Index })
	d.have.drop(gone.Index, func(netip.Addr) bool { return true })
	for i, l := range d.have.Links {
		if l.Master == gone.Name {
			d.released(&d.have.Links[i], gone.Kind)
		}
	}
	missing := missingIndex
	for _, w := range d.want.Links {
		missing = min(missing, w.Index-1) // lower than all indexes in use
	}
	for i := range d.want.Links {
		if d.want.Links[i].Index == gone.Index {
			d.want.Links[i].Index = missing
		}
	}
	d.want.Addresses, d.want.Routes = slices.Clone(d.want.Addresses), slices.Clone(d.want.Routes)
	for i := range d.want.Addresses {
		if d.want.Addresses[i].Index == gone.Index {
			d.want.Addresses[i].Index = missing
		}
	}
	for i := range d.want.Routes {
		if d.want.Routes[i].Index == gone.Index {
			d.want.Routes[i].Index = missing
		}
		d.want.Routes[i].Hops = slices.Clone(d.want.Routes[i].Hops)
		for j := range d.want.Routes[i].Hops {
			if d.want.Routes[i].Hops[j].Index == gone.Index {
				d.want.Routes[i].Hops[j].Index = missing
			}
		}
	}
}

// drop removes from h all routes of a link, and the addresses of the link for which selected
// returns true.
func (h *Have) drop(index int, selected func(netip.Addr) bool) {
	before := h.Addresses
	h.Addresses = slices.DeleteFunc(slices.Clone(h.Addresses), func(a Address) bool { return a.Index == index && selected(a.Prefix.Addr()) })
	h.Foreign = slices.DeleteFunc(slices.Clone(h.Foreign), func(a ForeignAddress) bool { return a.Index == index && selected(a.Prefix.Addr()) })
	ofLink := func(r Route) bool { return r.Index == index }
	h.Routes = slices.DeleteFunc(slices.Clone(h.Routes), ofLink)
	for i, r := range h.Routes {
		if r.uses(index) {
			// The kernel may retain some of the next hops. Without next hops, the route equals no
			// wanted route. Diff therefore deletes the route and adds it again.
			h.Routes[i].Hops = []Hop{}
		}
	}
	h.Advertised = slices.DeleteFunc(slices.Clone(h.Advertised), ofLink)
	for _, a := range before {
		h.dropSource(a.Prefix.Addr())
	}
}

// dropSource records that an address is removed from a link. If no other link has the address, the
// kernel removes the IPv4 routes with this source. It retains the IPv6 routes, but removes their
// source.
func (h *Have) dropSource(source netip.Addr) {
	still := func(a Address) bool { return a.Prefix.Addr() == source }
	if slices.ContainsFunc(h.Addresses, still) || slices.ContainsFunc(h.Foreign, func(f ForeignAddress) bool { return still(f.Address) }) {
		return
	}
	if source.Is4() {
		h.Routes = slices.DeleteFunc(h.Routes, func(r Route) bool { return r.Source == source })
		return
	}
	for i, r := range h.Routes {
		if r.Source == source {
			h.Routes[i].Source = netip.Addr{}
		}
	}
}

// interrupted records that a link was down for a moment. The kernel has then removed the routes and
// the IPv6 addresses of the link and of the VLANs above it.
func (d *linkDiff) interrupted(l Link) {
	d.have.drop(l.Index, isIPv6Addr)
	for _, above := range d.have.Links {
		if above.Virtual.parent() == l.Name {
			d.interrupted(above)
		}
	}
}

func isIPv6Addr(a netip.Addr) bool { return a.Is6() }

func isIPv6(p netip.Prefix) bool { return p.Addr().Is6() }

// released records that a member leaves its master. A bond sets the member down and restores its
// MTU from before it joined. A VRF sets the member down and up again.
func (d *linkDiff) released(l *Link, kind string) {
	d.adjustsMTU(l.Master)
	l.Membership = Membership{}
	switch kind {
	case kindBond:
		l.Up, l.MTU = false, 0
		d.interrupted(*l)
	case kindVRF:
		d.interrupted(*l)
	}
}

// create adds the operations that create the missing links, starting with the lowest.
func (d *linkDiff) create() {
	for _, i := range bottomUp(d.want.Links) {
		w := d.want.Links[i]
		if w.Index >= 0 {
			continue
		}
		d.add(Op{Verb: AddLink, Link: w.Name, Index: w.Index, Change: Change{To: w.Virtual, MAC: w.MAC}})
		l := Link{Name: w.Name, Index: w.Index, Kind: w.Virtual.Kind(), Own: true, Virtual: w.Virtual.created(), Sysctls: map[string]string{}}
		for key := range sysctls(w) {
			l.Sysctls[key] = "unknown"
		}
		switch l.Kind {
		case kindBond, kindBridge, kindDummy:
			l.MTU = ethernetMTU
		case kindWireGuard:
			l.MTU = wireguardMTU
		}
		if parent := w.Virtual.parent(); parent != "" {
			if n := slices.IndexFunc(d.have.Links, func(l Link) bool { return l.Name == parent }); n >= 0 {
				l.MTU = d.have.Links[n].MTU
			}
		}
		d.have.Links = append(d.have.Links, l)
	}
}

func (d *linkDiff) sysctls() {
	for _, w := range d.want.Links {
		l, set := d.link(w.Index), sysctls(w)
		if l == nil {
			continue
		}
		for _, key := range sortedKeys(set) {
			// The kernel lacks a key if IPv6 is off. The key cannot be set then.
			if now, ok := l.Sysctls[key]; ok && now != set[key] {
				d.add(Op{Verb: SetSysctl, Link: w.Name, Index: w.Index, Name: key, Value: set[key]})
			}
		}
	}
}

// members adds the operations that move links into and out of bonds, bridges and VRFs. A bond takes
// only a link that is down, and sets the link up (bond_main.c). A VRF sets a member down and up
// again (vrf.c). In both cases the kernel removes the routes and the IPv6 addresses of the member.
func (d *linkDiff) members() {
	kinds, own := map[string]string{}, map[string]bool{}
	for _, l := range d.have.Links {
		kinds[l.Name], own[l.Name] = l.Kind, l.Own
	}
	for i := range d.have.Links {
		l := &d.have.Links[i]
		stays := slices.ContainsFunc(d.want.Links, func(w WantLink) bool { return w.Index == l.Index && w.Master != "" })
		if own[l.Master] && !stays {
			d.add(Op{Verb: SetMaster, Link: l.Name, Index: l.Index})
			d.released(l, kinds[l.Master])
		}
	}
	for _, w := range d.want.Links {
		l := d.link(w.Index)
		if l == nil || w.Master == "" || l.Master == w.Master {
			continue
		}
		if l.Master != "" { // the kernel first takes the link out of its old master
			d.released(l, kinds[l.Master])
		}
		kind := kinds[w.Master]
		if kind == kindBond {
			d.prepare(w.Virtual.parent(), len(d.want.Links))
		}
		if kind == kindBond && w.MTU != 0 && w.MTU != l.MTU && l.MTU != 0 {
			d.add(Op{Verb: SetLink, Link: w.Name, Index: w.Index, MTU: w.MTU})
			l.MTU = w.MTU
		}
		d.add(Op{Verb: SetMaster, Link: w.Name, Index: w.Index, Name: w.Master, Change: Change{Kind: kind}})
		l.Membership = Membership{Master: w.Master}
		d.adjustsMTU(w.Master)
		switch kind {
		case kindBond:
			l.Up = true
			d.interrupted(*l)
		case kindVRF:
			d.interrupted(*l)
		}
	}
}

// prepare adds the operations that set the links below a VLAN up and set their MTUs, before the
// VLAN joins a bond. The bond sets the VLAN up and gives it the MTU of the bond. Both fail if the
// parent of the VLAN is down or has a smaller MTU. limit ends the recursion in a cycle.
func (d *linkDiff) prepare(parent string, limit int) {
	i := slices.IndexFunc(d.want.Links, func(w WantLink) bool { return w.Name == parent })
	if parent == "" || i < 0 || limit == 0 {
		return
	}
	d.prepare(d.want.Links[i].Virtual.parent(), limit-1)
	d.upAndMTU(d.want.Links[i])
}

// settings adds the operations that change settings of existing virtual links.
func (d *linkDiff) settings() {
	d.freePorts()
	for _, w := range d.want.Links {
		l := d.link(w.Index)
		if l == nil || w.Virtual.Kind() == "" {
			continue
		}
		if _, live := l.Virtual.changed(w.Virtual); len(live) > 0 {
			d.add(Op{Verb: SetVirtual, Link: w.Name, Index: w.Index, Change: Change{To: w.Virtual, Settings: live}})
		}
	}
}

// freePorts adds an operation for each tunnel with a UDP port that another tunnel wants. The
// operation gives the tunnel a port of the kernel's choice. It is necessary because only a single
// tunnel can have a port, and two tunnels may exchange their ports.
func (d *linkDiff) freePorts() {
	for _, w := range d.want.Links {
		to := w.Virtual.WireGuard
		if to == nil {
			continue
		}
		for i := range d.have.Links {
			l := &d.have.Links[i]
			if l.Index == w.Index || !l.Own || l.Virtual.WireGuard == nil || l.Virtual.WireGuard.Port != to.Port {
				continue
			}
			free := *l.Virtual.WireGuard
			free.Port = 0 // the kernel's choice
			l.Virtual = Virtual{WireGuard: &free}
			d.add(Op{Verb: SetVirtual, Link: l.Name, Index: l.Index, Change: Change{To: l.Virtual, Settings: []string{settingPort}}})
		}
	}
}

// tags adds the operations that change the VLANs of bridges with VLAN filtering and of their
// members.
func (d *linkDiff) tags() {
	for _, w := range d.want.Links {
		if l := d.link(w.Index); l != nil && w.Tags != "" && l.Tags != w.Tags {
			d.add(Op{Verb: SetTags, Link: w.Name, Index: w.Index, Value: w.Tags})
		}
	}
}

// upAndMTU adds up to two operations: set the link up, then set its MTU. They are separate, so the
// link is up even if the hardware rejects the MTU.
func (d *linkDiff) upAndMTU(w WantLink) {
	l := d.link(w.Index)
	if l == nil {
		return
	}
	if !l.Up {
		d.add(Op{Verb: SetLink, Link: w.Name, Index: w.Index, Up: true})
		l.Up = true
	}
	bonded := false // a bond sets the MTU of its members
	if m := slices.IndexFunc(d.have.Links, func(m Link) bool { return m.Name == w.Master }); m >= 0 {
		bonded = d.have.Links[m].Kind == kindBond
	}
	if w.MTU != 0 && w.MTU != l.MTU && !bonded {
		d.add(Op{Verb: SetLink, Link: w.Name, Index: w.Index, MTU: w.MTU})
		l.MTU = w.MTU
		d.adjustsMTU(l.Master)
	}
}

// adjustsMTU records that the MTU of a bridge is unknown (0), because a member has changed. Until
// the MTU of the bridge is set explicitly, the kernel sets it to the lowest MTU of the members
// (br_mtu_auto_adjust).
func (d *linkDiff) adjustsMTU(master string) {
	for i := range d.have.Links {
		if l := &d.have.Links[i]; l.Name == master && l.Kind == kindBridge {
			l.MTU = 0
		}
	}
}

// linkString describes an operation on a link for the operator.
func (o Op) linkString() string {
	switch o.Verb {
	case AddLink:
		return fmt.Sprintf("link %s: create %s", o.Link, o.Change.To.created())
	case DelLink:
		line := fmt.Sprintf("link %s: delete %s", o.Link, o.Change.Kind)
		if o.Change.Reason != "" {
			line += ", to create it again: " + o.Change.Reason
		}
		return line
	case SetMaster:
		if o.Name == "" {
			return fmt.Sprintf("link %s: belongs to no link", o.Link)
		}
		return fmt.Sprintf("link %s: belongs to %s %s", o.Link, o.Change.Kind, o.Name)
	case SetHardware:
		line := fmt.Sprintf("link %s: %s %s", o.Link, o.Name, o.Value)
		if o.Change.Reason != "" {
			line += ": " + o.Change.Reason
		}
		return line
	case SetTags:
		return fmt.Sprintf("link %s: VLANs %s", o.Link, o.Value)
	}
	return fmt.Sprintf("link %s: %s", o.Link, o.Change.To.values(o.Change.Settings))
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
