package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// systemLinks are the links of other components, with the component.
var systemLinks = map[string]string{
	"cni0": "the pod network", "mesh0": "the pod network", "orlop-dns": "the cluster DNS", "kube-ipvs0": "the service proxy",
}

// definition validates the fields that make a link one that the system creates.
func (v networkValidator) definition(path string, l *Link) {
	var defined []string
	for _, d := range []struct {
		field string
		set   bool
	}{{"bond", l.Bond != nil}, {"vlan", l.VLAN != nil}} {
		if d.set {
			defined = append(defined, d.field)
		}
	}
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
		v.part(path+".vlan.parent", l, l.VLAN.Parent)
	}
	members, field := l.Members()
	for i, m := range members {
		v.part(fmt.Sprintf("%s.%s[%d]", path, field, i), l, m)
	}
}

// part validates the selector of a link below another.
func (v networkValidator) part(path string, l *Link, selector string) {
	switch {
	case selector == "":
	case selector == l.Name:
		v.on(path, wrong{reason: "the link cannot belong to itself", expected: "another link"})
	case v.cfg.defined(selector) != nil:
	case badPattern(selector):
		v.on(path, wrong{reason: fmt.Sprintf("%s has an open bracket", quote(selector)), expected: "a name, or a pattern with *, ? and sets such as [0-3]"})
	case strings.Contains(selector, ":"):
		if strings.Trim(selector, "0123456789abcdef:*?[]-") != "" || len(selector) > 17 && !strings.Contains(selector, "[") {
			v.on(path, wrong{reason: fmt.Sprintf("%s is not a pattern for a hardware address", quote(selector)), expected: "six bytes in lower-case hexadecimal with colons; * and ? are wildcards"})
		}
	default:
		v.linkName(path, selector, "")
	}
}

// defined returns the link that the system creates with a name, or nil.
func (c *Config) defined(name string) *Link {
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

// arp validates the ARP monitor, which replaces the MII monitor.
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

// stack validates how the links depend on each other.
func (v networkValidator) stack(links []Link) {
	vlans := map[VLAN]int{}
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
		if v.cycle(l, len(links)) {
			v.on(path, wrong{reason: fmt.Sprintf("%s belongs to itself, through %s", quote(l.Name), strings.Join(l.Parts(), ", ")), expected: "links above others, ending at hardware"})
			return
		}
		members, field := l.Members()
		for j, m := range members {
			at := fmt.Sprintf("%s.%s[%d]", path, field, j)
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

func badPattern(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err != nil || strings.Contains(pattern, `\`)
}

// owner returns the link with a member, and the path of the member.
func (v networkValidator) owner(links []Link, member string) (*Link, string) {
	for i := range links {
		members, field := links[i].Members()
		for j, m := range members {
			if m == member || v.cfg.defined(member) == nil && !strings.Contains(member, ":") && matches(m, member) {
				return &links[i], fmt.Sprintf("Network.spec.links[%d].%s[%d]", i, field, j)
			}
		}
	}
	return nil, ""
}

// cycle reports whether a link is below itself.
func (v networkValidator) cycle(l *Link, depth int) bool {
	if depth < 0 {
		return true
	}
	return slices.ContainsFunc(l.Parts(), func(p string) bool {
		below := v.cfg.defined(p)
		return below != nil && below != l && v.cycle(below, depth-1)
	})
}

// member validates the own entries of a member of a bond: the bond has the addresses and the MTU.
func (v networkValidator) member(links []Link, owner *Link, selector string) {
	if owner.Bond == nil {
		return
	}
	for i := range links {
		l, path := &links[i], fmt.Sprintf("Network.spec.links[%d]", i)
		same := l.Name != "" && (l.Name == selector || l.Definition() == "" && matches(selector, l.Name)) || l.MAC != "" && matches(selector, string(l.MAC))
		if !same || l == owner {
			continue
		}
		for _, f := range []struct {
			field string
			set   bool
		}{{"dhcp4", l.DHCP4}, {"addresses", len(l.Addresses) > 0}, {"routes", len(l.Routes) > 0}, {"mtu", l.MTU != 0}} {
			if f.set {
				v.on(path+"."+f.field, wrong{reason: fmt.Sprintf("the link is a member of the bond %s", owner.Name), expected: "the field in the entry of the bond"})
			}
		}
	}
}
