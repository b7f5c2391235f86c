package config

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// systemLinks contains the links that components of the system create: the component by the name of
// the link.
var systemLinks = map[string]string{
	"cni0": "the pod network", "mesh0": "the pod network", "orlop-dns": "the cluster DNS", "kube-ipvs0": "the service proxy",
}

// definition validates the definition of a link that the machine creates, such as a bond. It does
// nothing if the link is hardware.
func (v networkValidator) definition(path string, l *Link) {
	defined := l.definitions()
	if len(defined) == 0 {
		return
	}
	if len(defined) > 1 {
		v.on(path+"."+defined[1], wrong{reason: fmt.Sprintf("the link has a %s already", defined[0]), expected: "one definition for each link"})
	}
	if l.Name == "" && !v.broken[path+".name"] {
		v.on(path+"."+defined[0], wrong{reason: "the link has no name", expected: "the name of the new link"})
	}
	if l.MAC != "" {
		v.on(path+".mac", wrong{reason: "a MAC selects hardware, and the system creates this link", expected: "a name only"})
	}
	switch {
	case l.Bond != nil:
		v.bond(path+".bond", l.Bond)
	case l.VLAN != nil:
		v.linkSelector(path+".vlan.parent", l, l.VLAN.Parent)
		if p := v.cfg.createdLink(l.VLAN.Parent); p != nil && (p.VRF != nil || p.Dummy || p.WireGuard != nil) {
			v.on(path+".vlan.parent", wrong{reason: fmt.Sprintf("a %s has no tagged frames", p.Definition()), expected: "hardware, a bond, a bridge or a VLAN"})
		}
	case l.Bridge != nil:
		v.bridge(path, l)
	case l.VRF != nil:
		v.vrf(path, l)
	case l.WireGuard != nil:
		v.wireguard(path, l)
	case l.Dummy && l.DHCP4:
		v.on(path+".dhcp4", wrong{reason: "a dummy has no DHCP, because it drops all packets", expected: "addresses"})
	}
	members, field := l.Members()
	for i, m := range members {
		at := path + "." + fmt.Sprintf(field, i)
		v.linkSelector(at, l, m)
		if p := v.cfg.createdLink(m); p != nil && (p.VRF != nil || l.VRF == nil && (p.WireGuard != nil || p.Bridge != nil || l.Bond != nil && (p.Dummy || p.Bond != nil))) {
			v.on(at, wrong{reason: fmt.Sprintf("a %s cannot belong to a %s", p.Definition(), l.Definition()), expected: "another link"})
		}
	}
}

// hardware validates the fields that only a link with hardware can have.
func (v networkValidator) hardware(path string, l *Link) {
	if m := l.Match; m != nil {
		if *m == (LinkMatch{}) && !v.broken[path+".match"] {
			v.on(path+".match", wrong{reason: "no pattern is set", expected: "name, mac, driver or path"})
		}
		for _, f := range m.fields() {
			if badPattern(f.pattern) {
				v.on(path+".match."+f.name, wrong{reason: fmt.Sprintf("%s has an open bracket, a backslash or [^", quote(f.pattern)), expected: "a pattern with *, ? and sets such as [0-3]"})
			}
		}
		if m.MAC != strings.ToLower(m.MAC) {
			v.on(path+".match.mac", wrong{reason: "a hardware address is in lower case", expected: "lower case", nearest: strings.ToLower(m.MAC)})
		}
	}
	if d := l.Definition(); d != "" {
		for _, f := range []struct {
			field string
			set   bool
		}{{"match", l.Match != nil}, {"hardware", l.Hardware != nil}} {
			if f.set {
				v.on(path+"."+f.field, wrong{reason: fmt.Sprintf("a %s is no hardware", d), expected: "the field in the entry of a network card"})
			}
		}
	}
	if l.Hardware == nil {
		return
	}
	o := l.Hardware.Offloads
	for i, name := range o.Disable {
		if slices.Contains(o.Enable, name) {
			v.on(fmt.Sprintf("%s.hardware.offloads.disable[%d]", path, i), wrong{reason: fmt.Sprintf("%s is also in enable", name), expected: "each feature once"})
		}
	}
}

// bridge validates the VLANs of a bridge and of its ports.
func (v networkValidator) bridge(path string, l *Link) {
	b := l.Bridge
	for i, p := range b.Ports {
		at := fmt.Sprintf("%s.bridge.ports[%d]", path, i)
		tagged := len(p.VLANs) > 0 || p.Untagged != 0
		switch {
		case tagged && !b.VLANFiltering:
			v.on(at, wrong{reason: "the port has VLANs, but the bridge ignores tags", expected: "vlanFiltering: true"})
		case !tagged && b.VLANFiltering && !v.broken[at+".vlans"] && !v.broken[at+".untagged"]:
			v.on(at, wrong{reason: "the port is in no VLAN, so it would drop all frames", expected: "vlans or untagged"})
		}
		for j, id := range p.VLANs {
			if id < 1 || id > 4094 {
				v.on(fmt.Sprintf("%s.vlans[%d]", at, j), wrong{reason: fmt.Sprintf("%d is no VLAN ID", id), expected: "1 to 4094"})
			} else if slices.Contains(p.VLANs[:j], id) || id == p.Untagged {
				v.on(fmt.Sprintf("%s.vlans[%d]", at, j), wrong{reason: fmt.Sprintf("VLAN %d is given twice", id)})
			}
		}
	}
	switch {
	case b.Untagged != 0 && !b.VLANFiltering:
		v.on(path+".bridge.untagged", wrong{reason: "the bridge ignores tags", expected: "vlanFiltering: true"})
	case b.Untagged == 0 && b.VLANFiltering && (l.DHCP4 || l.IPv6 != nil || len(l.Addresses) > 0):
		v.on(path+".bridge.untagged", wrong{reason: "the bridge has addresses, but the machine's own frames are in no VLAN", expected: "the VLAN of the addresses"})
	}
}

// reservedTable reports whether a routing table belongs to the kernel
// (include/uapi/linux/rtnetlink.h).
func reservedTable(table uint32) bool { return table == 0 || table >= 253 && table <= 255 }

// table validates the number of a routing table in a field with this path.
func (v networkValidator) table(path string, table uint32) {
	if reservedTable(table) && !v.broken[path] {
		v.on(path, wrong{reason: fmt.Sprintf("table %d is the kernel's", table), expected: "1 to 252, or 256 to 4294967295"})
	}
}

func (v networkValidator) vrf(path string, l *Link) {
	v.table(path+".vrf.table", l.VRF.Table)
	if l.DHCP4 || l.IPv6 != nil || l.MTU != 0 {
		v.on(path+".vrf", wrong{reason: "a VRF has no DHCP, no router advertisements and no MTU", expected: "these fields in the entries of its members"})
	}
}

// defaultMetric is the default metric of the routes of Network.spec.routes (machined/network).
const defaultMetric = 512

// routesAndRules validates Network.spec.routes (the routes that are not in the entry of a link) and
// Network.spec.rules.
func (v networkValidator) routesAndRules(spec string, n *NetworkSpec) {
	for i, r := range n.Routes {
		at := fmt.Sprintf("%s.routes[%d]", spec, i)
		v.destination(at+".to", r.To)
		if r.Table != 0 {
			v.table(at+".table", r.Table)
		}
		switch {
		case r.Type == "" && len(r.NextHops) == 0 && !v.broken[at+".type"] && !v.broken[at+".nextHops"]:
			v.on(at, wrong{reason: "the route has neither type nor nextHops", expected: "one of them"})
		case r.Type != "" && len(r.NextHops) > 0:
			v.on(at+".type", wrong{reason: "the route has next hops", expected: "type or nextHops, not both"})
		}
		for j, h := range r.NextHops {
			v.nextHop(fmt.Sprintf("%s.nextHops[%d]", at, j), r, h, r.NextHops[:j])
		}
		if j := slices.IndexFunc(n.Routes[:i], func(o TableRoute) bool {
			return o.To == r.To && cmp.Or(o.Metric, defaultMetric) == cmp.Or(r.Metric, defaultMetric) && o.Table == r.Table
		}); j >= 0 {
			v.on(at+".to", wrong{reason: fmt.Sprintf("%s with metric %d is also in routes[%d]", r.To, cmp.Or(r.Metric, defaultMetric), j), expected: "each destination once per metric and table"})
		}
	}
	v.rules(spec, n.Rules)
}

// nextHop validates a next hop of the route r. before contains the next hops that precede it.
func (v networkValidator) nextHop(path string, r TableRoute, h NextHop, before []NextHop) {
	v.linkSelector(path+".link", &Link{}, h.Link)
	if owner, at := v.owner(v.cfg.Network.Spec.Links, h.Link); owner != nil && owner.VRF == nil && h.Link != "" {
		v.on(path+".link", wrong{reason: fmt.Sprintf("%s is a member of the %s %s (%s)", h.Link, owner.Definition(), owner.Name, at), expected: "the " + owner.Definition(), nearest: owner.Name})
	}
	switch via := h.Via; {
	case !via.IsValid():
	case via.Is4In6() || via.IsUnspecified() || via.IsMulticast() || via.IsLoopback() || via.Zone() != "":
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s cannot be a gateway", via), expected: "the address of a router on this link"})
	case r.To.IsValid() && r.To.Addr().Is4() != via.Is4():
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s is not of the family of %s", via, r.To), expected: "a gateway of the same family"})
	case v.ownGateway(h):
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s is the machine's own address", via), expected: "the address of a router on this link"})
	case slices.ContainsFunc(v.cfg.Network.Spec.Links, func(l Link) bool { return selects(h.Link, &l) && l.noHost(via) }):
		v.on(path+".via", noGateway(via))
	case slices.ContainsFunc(before, func(o NextHop) bool { return o.Link == h.Link && o.Via == h.Via }):
		v.on(path+".via", wrong{reason: "the next hop is given twice"})
	}
}

// ownGateway reports whether a next hop is an address of the machine itself. A link-local address
// is compared only with the addresses of the link of the next hop, because a machine can have the
// same address on another link.
func (v networkValidator) ownGateway(h NextHop) bool {
	if !h.Via.Is6() || !h.Via.IsLinkLocalUnicast() {
		return v.cfg.ownAddress(h.Via) != ""
	}
	return slices.ContainsFunc(v.cfg.Network.Spec.Links, func(l Link) bool { return selects(h.Link, &l) && l.has(h.Via) })
}

// linkSelector validates the text that selects a member or the parent of the link l. The text is
// the name or the hardware address of a link, or a pattern for one of them.
func (v networkValidator) linkSelector(path string, l *Link, selector string) {
	switch {
	case selector == "":
	case selector == l.Name:
		v.on(path, wrong{reason: "the link cannot belong to itself", expected: "another link"})
	case v.cfg.createdLink(selector) != nil:
	case badPattern(selector):
		v.on(path, patternProblem(selector))
	case strings.Contains(selector, ":"):
		if strings.Trim(selector, "0123456789abcdef:*?[]-") != "" || len(selector) > 17 && !strings.Contains(selector, "[") {
			v.on(path, wrong{reason: fmt.Sprintf("%s is not a pattern for a hardware address", quote(selector)), expected: "six bytes in lower-case hexadecimal with colons; * and ? are wildcards"})
		}
	default:
		v.linkName(path, selector, "")
	}
}

// createdLink returns the link with this name if the machine creates it (Link.Definition);
// otherwise nil.
func (c *Config) createdLink(name string) *Link {
	for i := range c.Network.Spec.Links {
		if l := &c.Network.Spec.Links[i]; l.Name == name && l.Definition() != "" {
			return l
		}
	}
	return nil
}

func (v networkValidator) bond(path string, b *Bond) {
	if len(b.Members) == 0 && !v.broken[path+".members"] {
		v.on(path+".members", wrong{reason: "is empty", expected: "at least one link"})
	}
	if b.Primary != "" {
		switch {
		case b.Mode != BondActiveBackup && !v.broken[path+".mode"]:
			v.on(path+".primary", wrong{reason: fmt.Sprintf("in mode %s all members are in use", b.Mode), expected: "a primary only with active-backup"})
		case !slices.Contains(b.Members, b.Primary):
			v.on(path+".primary", wrong{reason: fmt.Sprintf("%s is not in members", quote(b.Primary)), expected: "one of them, written in the same way"})
		}
	}
	if b.LACPRate != "" && b.Mode != BondLACP && !v.broken[path+".mode"] {
		v.on(path+".lacpRate", wrong{reason: fmt.Sprintf("mode %s sends no LACPDUs", b.Mode), expected: "a rate only with 802.3ad"})
	}
	if b.MinLinks > len(b.Members) && !strings.ContainsAny(strings.Join(b.Members, ""), "*?[") && b.MinLinks <= 16 {
		v.on(path+".minLinks", wrong{reason: fmt.Sprintf("the bond has only %d members", len(b.Members)), expected: "at most the number of members"})
	}
	switch {
	case b.ARP != nil:
		v.arp(path, b)
		return
	case b.MII == nil:
		return
	}
	for _, d := range []struct {
		field string
		delay Duration
	}{{"upDelay", b.MII.UpDelay}, {"downDelay", b.MII.DownDelay}} {
		if b.MII.Interval > 0 && d.delay%b.MII.Interval != 0 {
			v.on(path+".mii."+d.field, wrong{reason: fmt.Sprintf("%s is not a multiple of the interval %s", d.delay, b.MII.Interval), expected: "a multiple of interval"})
		}
	}
}

// arp validates the ARP monitor of a bond. A bond cannot have both an ARP monitor and an MII
// monitor.
func (v networkValidator) arp(path string, b *Bond) {
	if b.Mode == BondLACP {
		v.on(path+".arp", wrong{reason: "the kernel has no ARP monitor in mode 802.3ad", expected: "mii"})
	}
	if b.MII != nil {
		v.on(path+".mii", wrong{reason: "the bond has an ARP monitor already", expected: "mii or arp"})
	}
	if n := len(b.ARP.Targets); (n < 1 || n > 16) && !v.broken[path+".arp.targets"] {
		v.on(path+".arp.targets", wrong{reason: fmt.Sprintf("%d targets", n), expected: "1 to 16 (BOND_MAX_ARP_TARGETS)"})
	}
	seen := map[string]int{}
	for i, a := range b.ARP.Targets {
		at := fmt.Sprintf("%s.arp.targets[%d]", path, i)
		if a.IsValid() && (!a.Is4() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()) {
			v.on(at, wrong{reason: fmt.Sprintf("%s cannot answer ARP", a), expected: "the IPv4 address of a host on the link"})
		}
		v.unique(at, "targets", a.String(), i, seen)
	}
}

// stack validates the relations between links: between a VLAN and its parent, and between a link
// and its members. It also rejects two VRFs with the same routing table.
func (v networkValidator) stack(links []Link) {
	vlans, tables := map[VLAN]int{}, map[uint32]int{}
	for i := range links {
		l, path := &links[i], fmt.Sprintf("Network.spec.links[%d]", i)
		if l.VLAN != nil && l.VLAN.Parent != "" {
			if j, twice := vlans[*l.VLAN]; twice {
				v.on(path+".vlan.id", wrong{reason: fmt.Sprintf("VLAN %d of %s is also in links[%d]", l.VLAN.ID, l.VLAN.Parent, j), expected: "each VLAN once"})
			}
			vlans[*l.VLAN] = i
			if owner, at := v.owner(links, l.VLAN.Parent); owner != nil && owner.Bond != nil {
				v.on(path+".vlan.parent", wrong{reason: fmt.Sprintf("%s is a member of the bond %s (%s)", l.VLAN.Parent, owner.Name, at), expected: "the bond", nearest: owner.Name})
			}
		}
		if l.VRF != nil {
			if j, twice := tables[l.VRF.Table]; twice {
				v.on(path+".vrf.table", wrong{reason: fmt.Sprintf("table %d is also in links[%d]", l.VRF.Table, j), expected: "a table for each VRF"})
			}
			tables[l.VRF.Table] = i
		}
		if v.cycle(l, len(links)) {
			v.on(path, wrong{reason: fmt.Sprintf("%s belongs to itself, through %s", quote(l.Name), strings.Join(l.Parts(), ", ")), expected: "links above others, ending at hardware"})
			return
		}
		members, field := l.Members()
		for j, m := range members {
			at := path + "." + fmt.Sprintf(field, j)
			if slices.Contains(members[:j], m) {
				v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", quote(m))})
			} else if owner, first := v.owner(links[:i], m); owner != nil {
				v.on(at, wrong{reason: fmt.Sprintf("%s is also in %s", quote(m), first), expected: "each link in one other link"})
			}
			v.member(links, l, m)
		}
	}
}

// matches reports whether a text matches the pattern of a member.
func matches(pattern, text string) bool {
	ok, err := path.Match(pattern, text)
	return ok && err == nil
}

// badPattern reports whether a pattern is malformed, or contains a backslash or a negated set,
// which package glob does not support.
func badPattern(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err != nil || strings.Contains(pattern, `\`) || strings.Contains(pattern, "[^")
}

// patternProblem returns the problem for a bad pattern in a field that also accepts a name.
func patternProblem(pattern string) wrong {
	return wrong{reason: fmt.Sprintf("%s has an open bracket, a backslash or [^", quote(pattern)), expected: "a name, or a pattern with *, ? and sets such as [0-3]"}
}

// owner returns the first of the links that has a certain member, and the path of the field that
// names the member. member is a name or a pattern. The result is nil if no link has this member.
func (v networkValidator) owner(links []Link, member string) (*Link, string) {
	for i := range links {
		members, field := links[i].Members()
		for j, m := range members {
			if m == member || v.cfg.createdLink(member) == nil && !strings.Contains(member, ":") && matches(m, member) {
				return &links[i], fmt.Sprintf("Network.spec.links[%d].", i) + fmt.Sprintf(field, j)
			}
		}
	}
	return nil, ""
}

// selects reports whether the selector of a member selects the link l.
func selects(selector string, l *Link) bool {
	return l.Name != "" && (l.Name == selector || l.Definition() == "" && matches(selector, l.Name)) || l.MAC != "" && matches(selector, string(l.MAC))
}

// vrfOf returns the name of the VRF of which a link is a member. If the link is itself a VRF, it
// returns the name of the link. The result is "" if there is no VRF.
func vrfOf(links []Link, l *Link) string {
	if l.VRF != nil {
		return l.Name
	}
	for i := range links {
		if vrf := links[i].VRF; vrf != nil && slices.ContainsFunc(vrf.Members, func(m string) bool { return selects(m, l) }) {
			return links[i].Name
		}
	}
	return ""
}

// parentMTU checks that the MTU of a VLAN is not larger than that of its parent, as the kernel
// requires. A VLAN or a bridge without an mtu field gets its MTU from its parent or its members. If
// v6 is true, the link has IPv6 addresses, and parentMTU also checks that this MTU is sufficient
// for IPv6.
func (v networkValidator) parentMTU(path string, l *Link, v6 bool) {
	for _, below := range l.Parts() {
		limit := v.maxMTU(below, len(v.cfg.Network.Spec.Links))
		switch {
		case limit == 0 || l.Bond != nil || l.VRF != nil:
		case l.VLAN != nil && l.MTU > limit:
			v.on(path+".mtu", wrong{reason: fmt.Sprintf("%d is larger than the MTU %d of %s", l.MTU, limit, below), expected: fmt.Sprintf("at most %d, or a larger mtu of %s", limit, below)})
		case l.MTU == 0 && v6 && limit < minMTU6:
			v.on(path, wrong{reason: fmt.Sprintf("the link has the MTU %d of %s, and an IPv6 address needs %d (RFC 8200)", limit, below, minMTU6), expected: fmt.Sprintf("a larger mtu of %s", below)})
		}
	}
}

// maxMTU returns the largest MTU that a link can have according to the Network document; 0 if it is
// unknown. depth is the maximum number of recursive calls, because invalid links can form a cycle.
func (v networkValidator) maxMTU(name string, depth int) int {
	links := v.cfg.Network.Spec.Links
	i := slices.IndexFunc(links, func(l Link) bool { return l.Name == name || l.Definition() == "" && string(l.MAC) == name })
	if i < 0 || depth == 0 {
		return 0
	}
	l := &links[i]
	switch {
	case l.MTU != 0:
		return l.MTU
	case l.DHCP4: // unknown, because the lease can contain an MTU
		return 0
	case l.Bond != nil || l.Dummy:
		return ethernetMTU
	}
	least := 0
	for _, below := range l.Parts() {
		if mtu := v.maxMTU(below, depth-1); mtu != 0 && (least == 0 || mtu < least) {
			least = mtu
		}
	}
	return least
}

// cycle reports whether a link belongs to itself through other links. depth is the maximum number
// of recursive calls; it is initially the number of all links, which only a cycle can exceed.
func (v networkValidator) cycle(l *Link, depth int) bool {
	if depth < 0 {
		return true
	}
	return slices.ContainsFunc(l.Parts(), func(p string) bool {
		below := v.cfg.createdLink(p)
		return below != nil && below != l && v.cycle(below, depth-1)
	})
}

// member validates the entry of each link that the selector selects as a member of owner, a bond or
// a bridge. Such an entry must not contain addresses, because the addresses belong in the entry of
// owner. It must not contain an MTU if owner is a bond.
func (v networkValidator) member(links []Link, owner *Link, selector string) {
	if owner.VRF != nil {
		return
	}
	for i := range links {
		l, path := &links[i], fmt.Sprintf("Network.spec.links[%d]", i)
		if !selects(selector, l) || l == owner {
			continue
		}
		for _, f := range []struct {
			field string
			set   bool
		}{{"dhcp4", l.DHCP4}, {"ipv6", l.IPv6 != nil}, {"addresses", len(l.Addresses) > 0}, {"routes", len(l.Routes) > 0}, {"mtu", l.MTU != 0 && owner.Bond != nil}} {
			if f.set {
				v.on(path+"."+f.field, wrong{reason: fmt.Sprintf("the link is a member of the %s %s", owner.Definition(), owner.Name), expected: "the field in the entry of the " + owner.Definition()})
			}
		}
	}
}
