package network

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/glob"
)

// Missing returns the selectors in the configuration that select no link: selectors of entries,
// members, parents, subnets and next hops. A configured virtual link counts as existing.
func Missing(c Config, f Facts) []string {
	var out []string
	for _, lc := range c.Links {
		for _, s := range lc.IPv6.subnets() {
			if _, ok := c.find(s.Link, f.Links); !ok {
				out = appendNew(out, s.Link)
			}
		}
		if lc.Virtual.Kind() == "" {
			if len(selectLinks(lc, f.Links)) == 0 {
				out = appendNew(out, lc.selector())
			}
			continue
		}
		for _, s := range lc.parts() {
			if _, ok := c.find(s, f.Links); !ok {
				out = appendNew(out, s)
			}
		}
	}
	for _, r := range c.Routes {
		for _, h := range r.Hops {
			if _, ok := c.find(h.Link, f.Links); !ok {
				out = appendNew(out, h.Link)
			}
		}
	}
	return out
}

// Taken returns the names of configured virtual links that hardware or another component has
// already. The package cannot create these links.
func Taken(c Config, f Facts) (names []string) {
	for _, lc := range c.Links {
		other := func(l Link) bool { return l.Name == lc.Name && !l.Own }
		if lc.Virtual.Kind() != "" && slices.ContainsFunc(f.Links, other) {
			names = append(names, lc.Name)
		}
	}
	return names
}

// selector returns the name, the MAC or the match of an entry, as text for messages.
func (lc LinkConfig) selector() string {
	switch {
	case lc.Name != "":
		return lc.Name
	case lc.Match != nil:
		return lc.Match.String()
	}
	return lc.MAC.String()
}

// parts returns the selectors of the links below a virtual link: its parent and its members.
func (lc LinkConfig) parts() []string {
	var out []string
	if p := lc.Virtual.parent(); p != "" {
		out = append(out, p)
	}
	for _, m := range lc.Members {
		out = append(out, m.Selector)
	}
	return out
}

// find returns the name of the first link that a selector in an entry selects. It returns false if
// the selector selects no link.
func (c Config) find(selector string, links []Link) (string, bool) {
	if names := c.findAll(selector, links); len(names) > 0 {
		return names[0], true
	}
	return "", false
}

// findAll returns the names of the links that a selector in an entry selects. The selector is the
// name of a configured virtual link, or a pattern for hardware. A pattern with colons matches MACs,
// and a pattern without colons matches names. The result can contain a virtual link that does not
// exist yet.
func (c Config) findAll(selector string, links []Link) (names []string) {
	for _, lc := range c.Links {
		if lc.Virtual.Kind() != "" && lc.Name == selector {
			return []string{lc.Name}
		}
	}
	for _, l := range sortedLinks(links) {
		switch {
		case l.Loopback, l.Own:
		case strings.Contains(selector, ":") && l.Physical() && glob.Match(selector, l.permanentMAC()):
			names = append(names, l.Name)
		// An exact name can also select a link of another component, as in selectLinks.
		case l.Name == selector, l.Physical() && glob.Match(selector, l.Name):
			names = append(names, l.Name)
		}
	}
	return names
}

// planLinks returns the managed links: first the configured links in their order, then the hardware
// below these links that has no entry, then the loopback.
func planLinks(c Config, f Facts) []WantLink {
	p := linkPlan{c: c, f: f}
	if len(c.Links) == 0 {
		for _, l := range sortedLinks(f.Links) {
			if l.Physical() {
				p.add(l, LinkConfig{DHCP4: true, IPv6: LinkIPv6{AcceptRA: true, DHCP6: DHCP6Auto}}, -1)
			}
		}
	}
	for n, lc := range c.Links {
		if lc.Virtual.Kind() != "" {
			p.addVirtual(lc, n)
			continue
		}
		p.addHardware(lc, n)
	}
	p.addParts()
	p.setMasters()
	p.setTags()
	for _, i := range bottomUp(p.out) {
		p.planMTU(&p.out[i])
	}
	for _, l := range f.Links {
		if l.Loopback {
			p.out = append(p.out, WantLink{Name: l.Name, Index: l.Index, Loopback: true, Config: -1})
		}
	}
	return p.out
}

// linkPlan is the state of planLinks. out has the links planned so far.
type linkPlan struct {
	c   Config
	f   Facts
	out []WantLink
}

// addHardware adds the hardware that an entry selects. If the entry has static addresses or routes,
// it adds only the first link, because these are for a single link.
func (p *linkPlan) addHardware(lc LinkConfig, n int) {
	for _, l := range selectLinks(lc, p.f.Links) {
		if lc.Match != nil && p.c.reserved(l, n, p.f.Links) {
			continue
		}
		if master := p.c.master(l.Name, p.f.Links); master != nil {
			p.addMember(l, lc, master)
			continue
		}
		before := len(p.out)
		p.add(l, lc, n)
		if lc.single() && len(p.out) > before {
			return
		}
	}
}

// addMember adds hardware that belongs to a bond or a bridge. The addresses and routes of its entry
// are not used, because the bond or bridge has them. A bond also sets the MTU of its members.
func (p *linkPlan) addMember(l Link, lc LinkConfig, master *LinkConfig) {
	own := LinkConfig{MTU: lc.MTU, Hardware: lc.Hardware}
	if master.Virtual.Bond != nil {
		own.MTU = 0
	}
	p.add(l, own, -1)
}

// master returns the entry of the bond or bridge to which hardware belongs, or nil.
func (c Config) master(name string, links []Link) *LinkConfig {
	for i, lc := range c.Links {
		if lc.Virtual.Bond == nil && lc.Virtual.Bridge == nil {
			continue
		}
		if slices.ContainsFunc(lc.Members, func(m Member) bool { return slices.Contains(c.findAll(m.Selector, links), name) }) {
			return &c.Links[i]
		}
	}
	return nil
}

// misplaced returns a line for each entry with addresses, routes or DHCP for hardware that belongs
// to a bond or a bridge. The parser of the configuration cannot find this error if the two entries
// select the hardware differently, for example by name and by MAC.
func misplaced(c Config, f Facts) (lines []string) {
	for _, lc := range c.Links {
		if lc.Virtual.Kind() != "" || lc.Match != nil || !lc.single() && !lc.DHCP4 {
			continue
		}
		for _, l := range selectLinks(lc, f.Links) {
			if master := c.master(l.Name, f.Links); master != nil {
				lines = append(lines, fmt.Sprintf("link %s: belongs to %s, which has the addresses; its own addresses, routes and DHCP are not used", l.Name, master.Name))
			}
		}
	}
	return lines
}

// single reports whether an entry is for a single link, because it has static addresses or routes.
func (lc LinkConfig) single() bool { return len(lc.Addresses) > 0 || len(lc.Routes) > 0 }

// reserved reports whether hardware belongs to another entry than the n-th entry. An entry that
// selects the hardware by name or MAC always takes precedence. An entry with a match takes
// precedence if it is before the n-th entry.
func (c Config) reserved(l Link, n int, links []Link) bool {
	for i, lc := range c.Links {
		if i == n || lc.Virtual.Kind() != "" || lc.Match != nil && i > n {
			continue
		}
		if slices.ContainsFunc(selectLinks(lc, links), func(o Link) bool { return o.Index == l.Index }) {
			return true
		}
	}
	return false
}

// ambiguous returns a line for each entry with static addresses or routes that matches several
// links. want are the planned links.
func ambiguous(c Config, f Facts, want []WantLink) (lines []string) {
	for n, lc := range c.Links {
		if lc.Match == nil || !lc.single() {
			continue
		}
		var names []string
		for _, l := range selectLinks(lc, f.Links) {
			free := !slices.ContainsFunc(want, func(w WantLink) bool { return w.Index == l.Index && w.Config != n })
			if free && !c.reserved(l, n, f.Links) && c.master(l.Name, f.Links) == nil {
				names = append(names, l.Name)
			}
		}
		if len(names) > 1 {
			lines = append(lines, fmt.Sprintf("links %s: %s: only %s has the addresses and routes, which are for a single link", strings.Join(names, " and "), lc.selector(), names[0]))
		}
	}
	return lines
}

// add adds an existing link with the settings of lc. n is the index of the entry, or -1 without an
// entry.
func (p *linkPlan) add(l Link, lc LinkConfig, n int) {
	if slices.ContainsFunc(p.out, func(o WantLink) bool { return o.Index == l.Index }) {
		// the first entry wins if two entries select the link, for example by name and by MAC
		return
	}
	hardware := maps.Clone(p.f.Hardware[l.Index])
	for name, value := range lc.Hardware {
		if hardware == nil {
			hardware = map[string]string{}
		}
		if name == HardwareFunctions && l.Function {
			// a match can select a card and its virtual functions, but a function has no functions
			// of its own
			continue
		}
		hardware[name] = value
	}
	p.out = append(p.out, WantLink{Name: l.Name, Index: l.Index, MTU: lc.MTU, DHCP4: lc.DHCP4, AcceptRA: lc.IPv6.AcceptRA, DHCP6: lc.IPv6.mode(l), Config: n, Hardware: hardware})
}

// missingIndex is the highest index of a planned link that does not exist yet. Each of these links
// has a different negative index, because the index identifies a link.
const missingIndex = -1

// addVirtual adds a virtual link, with its index if it exists already. It omits a VLAN without
// hardware below it.
func (p *linkPlan) addVirtual(lc LinkConfig, n int) {
	w := WantLink{Name: lc.Name, Index: missingIndex - n, MTU: lc.MTU, DHCP4: lc.DHCP4, AcceptRA: lc.IPv6.AcceptRA, DHCP6: lc.IPv6.mode(Link{}), Config: n, Virtual: lc.Virtual}
	for _, l := range p.f.Links {
		if l.Name == lc.Name && l.Own && l.Kind == lc.Virtual.Kind() {
			w.Index, w.DHCP6 = l.Index, lc.IPv6.mode(l)
		}
	}
	switch {
	case w.Virtual.VLAN != nil:
		parent, ok := p.c.find(w.Virtual.VLAN.Parent, p.f.Links)
		if !ok || !p.c.grounded(parent, p.f.Links, len(p.c.Links)) {
			return // Missing reports the parent
		}
		w.Virtual.VLAN = &VLAN{Parent: parent, ID: w.Virtual.VLAN.ID}
	case w.Virtual.Bond != nil:
		b := *w.Virtual.Bond
		if b.Primary != "" {
			b.Primary, _ = p.c.find(b.Primary, p.f.Links)
		}
		w.Virtual.Bond = &b
	}
	p.out = append(p.out, w)
}

// grounded reports whether the hardware below a VLAN exists. It returns true for links of other
// kinds. limit ends the recursion in a cycle of VLANs, which the parser of the configuration
// rejects.
func (c Config) grounded(name string, links []Link, limit int) bool {
	for _, lc := range c.Links {
		if lc.Name != name || lc.Virtual.VLAN == nil {
			continue
		}
		parent, ok := c.find(lc.Virtual.VLAN.Parent, links)
		return ok && limit > 0 && c.grounded(parent, links, limit-1)
	}
	return true
}

// addParts adds the hardware below virtual links that has no entry. The package brings this
// hardware up, but gives it no address.
func (p *linkPlan) addParts() {
	for _, lc := range p.c.Links {
		for _, s := range lc.parts() {
			for _, name := range p.c.findAll(s, p.f.Links) {
				i := slices.IndexFunc(p.f.Links, func(l Link) bool { return l.Name == name && !l.Own })
				if i >= 0 {
					p.add(p.f.Links[i], LinkConfig{}, -1)
				}
			}
		}
	}
}

// setMasters assigns the members to bonds, bridges and VRFs, in the order of the configuration. A
// created link gets the MAC of its first member. The MAC then does not depend on the order in which
// the members join. A machine also retains its MAC when its only link becomes a member.
func (p *linkPlan) setMasters() {
	for _, lc := range p.c.Links {
		for _, m := range lc.Members {
			for _, name := range p.c.findAll(m.Selector, p.f.Links) {
				member, master := p.named(name), p.named(lc.Name)
				if member == nil || master == nil || member.Master != "" {
					continue
				}
				member.Master = lc.Name
				if filters(lc.Virtual) {
					member.Tags = m.Tags
				}
			}
		}
	}
	for i := range p.out {
		if w := &p.out[i]; w.Virtual.parent() == "" && w.Virtual.Kind() != "" {
			w.MAC = p.macOf(w.Name, len(p.out))
		}
	}
}

// macOf returns the MAC of the first hardware below a link, or "" without hardware. limit ends the
// recursion in a cycle, which the parser of the configuration rejects.
func (p *linkPlan) macOf(name string, limit int) string {
	w := p.named(name)
	switch {
	case w == nil || limit == 0:
		return ""
	case w.Virtual.parent() != "":
		return p.macOf(w.Virtual.parent(), limit-1)
	case w.Virtual.Kind() == "":
		i := slices.IndexFunc(p.f.Links, func(l Link) bool { return l.Index == w.Index })
		if i < 0 {
			return ""
		}
		return p.f.Links[i].permanentMAC()
	}
	for _, m := range p.c.Links[w.Config].Members {
		for _, part := range p.c.findAll(m.Selector, p.f.Links) {
			if member := p.named(part); member != nil && member.Master == name {
				if mac := p.macOf(part, limit-1); mac != "" {
					return mac
				}
			}
		}
	}
	return ""
}

// setTags sets the Tags of each bridge with VLAN filtering, which are the VLANs of the machine
// itself: the VLAN of its untagged frames, and the VLANs with the bridge as their parent.
func (p *linkPlan) setTags() {
	for i := range p.out {
		w := &p.out[i]
		if !filters(w.Virtual) {
			continue
		}
		var ids []int
		for _, above := range p.out {
			if above.Virtual.parent() == w.Name {
				ids = append(ids, above.Virtual.VLAN.ID)
			}
		}
		w.Tags = Tags(ids, p.c.Links[w.Config].Untagged)
	}
}

// filters reports whether a link is a bridge with VLAN filtering.
func filters(v Virtual) bool { return v.Bridge != nil && v.Bridge.Filtering }

// named returns the planned link with a name, or nil.
func (p *linkPlan) named(name string) *WantLink {
	i := slices.IndexFunc(p.out, func(w WantLink) bool { return w.Name == name })
	if i < 0 {
		return nil
	}
	return &p.out[i]
}

// planMTU sets the MTU of a link without a configured MTU. The first available value counts: the
// MTU of the lease, the MTU of the parent, the original MTU of hardware, the kernel's default for a
// created link. A member of a bond gets its original MTU before it joins, and then the MTU of the
// bond.
func (p *linkPlan) planMTU(w *WantLink) {
	if w.MTU != 0 {
		return
	}
	ipv6 := w.Config >= 0 && p.c.Links[w.Config].speaksIPv6() || w.AcceptRA
	// IPv6 requires an MTU of 1280 (RFC 8200). The kernel disables IPv6 on a link with a smaller
	// MTU, and a DHCPv4 server must not cause this.
	if lease := p.f.Leases[w.Name]; w.DHCP4 && lease != nil && lease.MTU != 0 && (lease.MTU >= 1280 || !ipv6) {
		w.MTU = lease.MTU
		// the kernel rejects a larger MTU on a VLAN
		if most := p.mtuOf(w.Virtual.parent()); most != 0 {
			w.MTU = min(w.MTU, most)
		}
		return
	}
	switch w.Virtual.Kind() {
	case "":
		w.MTU = p.f.MTUs[w.Index]
	case kindVLAN:
		w.MTU = p.mtuOf(w.Virtual.VLAN.Parent)
	case kindBridge:
		// The MTU of a bridge is the lowest MTU of its members. The kernel uses the same value
		// until the first explicit MTU (br_mtu_auto_adjust).
		w.MTU = ethernetMTU
		for i, m := range p.members(w.Name) {
			if mtu := p.mtuOf(m); i == 0 || mtu < w.MTU {
				w.MTU = mtu
			}
		}
	case kindWireGuard:
		w.MTU = wireguardMTU
	case kindBond, kindDummy:
		w.MTU = ethernetMTU
	}
}

// members returns the names of the planned members of a link.
func (p *linkPlan) members(of string) (names []string) {
	for _, w := range p.out {
		if w.Master == of {
			names = append(names, w.Name)
		}
	}
	return names
}

// Default MTUs of the kernel, in bytes. A bond and a dummy have ETH_DATA_LEN
// (include/uapi/linux/if_ether.h). WireGuard subtracts the size of its headers over IPv6
// (drivers/net/wireguard/device.c). The MTU of a VRF is never set.
const (
	ethernetMTU  = 1500
	wireguardMTU = 1420
)

// mtuOf returns the planned MTU of a link, else its present MTU, and 0 if the link does not exist.
// A link that leaves a bond gets back the MTU that it had before it joined. For this link, mtuOf
// returns the recorded original MTU or, without a record, the default of Ethernet.
func (p *linkPlan) mtuOf(name string) int {
	w := p.named(name)
	if w != nil && w.MTU != 0 {
		return w.MTU
	}
	for _, l := range p.f.Links {
		if l.Name != name {
			continue
		}
		if p.inBond(l) && (w == nil || w.Master != l.Master) {
			return cmp.Or(p.f.MTUs[l.Index], ethernetMTU)
		}
		return l.MTU
	}
	return 0
}

// inBond reports whether a link is a member of a bond at present.
func (p *linkPlan) inBond(l Link) bool {
	return slices.ContainsFunc(p.f.Links, func(m Link) bool { return m.Name == l.Master && m.Virtual.Kind() == kindBond })
}

// bottomUp returns the positions of links in an order in which the package can create them: each
// link comes after its parent and its members. Otherwise the order of links is preserved.
func bottomUp(links []WantLink) []int {
	order := make([]int, len(links))
	depths := make([]int, len(links))
	for i := range links {
		order[i], depths[i] = i, depth(links, links[i], len(links))
	}
	slices.SortStableFunc(order, func(a, b int) int { return depths[a] - depths[b] })
	return order
}

// depth returns the number of levels below a link, 0 for hardware. limit ends the recursion in a
// cycle, which the parser of the configuration rejects.
func depth(links []WantLink, w WantLink, limit int) int {
	if w.Virtual.Kind() == "" || limit == 0 {
		return 0
	}
	most := 0
	for _, o := range links {
		if o.Master == w.Name || o.Name == w.Virtual.parent() {
			most = max(most, depth(links, o, limit-1))
		}
	}
	return most + 1
}

// speaksIPv6 reports whether the configuration lets a link have an IPv6 address in addition to its
// link-local address.
func (lc LinkConfig) speaksIPv6() bool {
	return lc.IPv6 != LinkIPv6{} || slices.ContainsFunc(lc.Addresses, isIPv6)
}

// selectLinks returns the existing links that an entry for hardware selects. A match can select
// several links; a name or a MAC selects at most a single link. A MAC selects only a physical link,
// because other links can have the same MAC, for example a VLAN.
func selectLinks(lc LinkConfig, links []Link) (out []Link) {
	for _, l := range sortedLinks(links) {
		switch {
		case l.Loopback, l.Own:
		case lc.Match != nil:
			if lc.Match.matches(l) {
				out = append(out, l)
			}
		case lc.Name != "" && l.Name == lc.Name:
			return []Link{l}
		case lc.Name == "" && l.Physical() && l.permanentMAC() == lc.MAC.String():
			return []Link{l}
		}
	}
	return out
}

// permanentMAC returns the permanent MAC of the hardware, which a bond does not change. Without a
// permanent MAC, it returns the present MAC.
func (l Link) permanentMAC() string {
	if l.Permanent != "" {
		return l.Permanent
	}
	return l.MAC
}

// sortedLinks returns the links sorted by index, which is the order of their creation.
func sortedLinks(links []Link) []Link {
	return slices.SortedFunc(slices.Values(links), func(a, b Link) int { return a.Index - b.Index })
}
