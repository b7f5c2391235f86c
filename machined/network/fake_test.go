package network

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// machine is the system under test: the fake in this file, or the kernel (cases_kernel_test.go).
type machine interface {
	Read(Config) (Have, error)
	Do(Op) error
	remembered() *memory
}

// fake is a kernel in memory. It has the properties of Linux on which Diff depends:
//
//   - A route needs a link that is up. Its next hop must be reachable by an address, by a route on
//     the link, or by "onlink".
//   - Destination, metric and table are the key of a route.
//   - When the first IPv4 address of a subnet is removed, the other addresses of the subnet are
//     removed, too, unless promote_secondaries is 1.
//   - When the last IPv4 address of a link is removed, the IPv4 routes of the link are removed,
//     too.
//   - A link has an IPv6 address only once, regardless of the prefix length.
//   - Hardware rejects an MTU above a limit (mostMTU). A rejected operation has no effect.
//   - A new link has the kernel's default settings, and the MTU of its parent. A VLAN cannot be
//     created without its parent, is up only while the parent is up, and is removed with the
//     parent.
//   - A link that joins a bond is set down and up again, and gets the MTU of the bond. A link that
//     leaves a bond is down, and has the MTU from before it joined.
//   - A link that goes down loses its routes and its IPv6 addresses.
//   - When the last address is removed that is the source of a route, an IPv4 route is removed, and
//     an IPv6 route loses its source.
//   - Only a single tunnel can have a UDP port.
type fake struct {
	have    Have
	mostMTU int         // 0 permits any MTU
	last    int         // the highest index of a link so far
	before  map[int]int // MTUs of members before they joined, by index
	memory  memory
}

func (f *fake) remembered() *memory { return &f.memory }

func newFake(links ...Link) *fake {
	f := &fake{have: Have{Hostname: "localhost"}, before: map[int]int{}}
	for i, l := range append([]Link{{Name: "lo", Loopback: true, Carrier: true, MTU: 65536}}, links...) {
		l.Index = i + 1
		if !l.Loopback {
			l.Sysctls = defaultSysctls(l.Name)
		}
		f.have.Links = append(f.have.Links, l)
		f.last = l.Index
	}
	return f
}

func defaultSysctls(link string) map[string]string {
	return map[string]string{
		"ipv4/conf/" + link + "/promote_secondaries":         "0",
		"ipv4/conf/" + link + "/ignore_routes_with_linkdown": "0",
		"ipv6/conf/" + link + "/ignore_routes_with_linkdown": "0",
		"ipv6/conf/" + link + "/accept_ra":                   "1",
	}
}

func (f *fake) Read(Config) (Have, error) {
	h := f.have
	h.Links = cloneLinks(h.Links)
	h.Addresses, h.Routes, h.Foreign = slices.Clone(h.Addresses), slices.Clone(h.Routes), slices.Clone(h.Foreign)
	h.Advertised, h.Rules = slices.Clone(h.Advertised), slices.Clone(h.Rules)
	return h, nil
}

func (f *fake) Do(o Op) error {
	if l := f.named(o.Link); o.Index < 0 && o.Verb != AddLink && l != nil {
		o.Index = l.Index
	}
	if l := f.named(o.Route.Link); o.Route.Index < 0 && l != nil {
		o.Route.Index = l.Index
	}
	o.Route.Hops = slices.Clone(o.Route.Hops)
	for i, h := range o.Route.Hops {
		if l := f.named(h.Link); h.Index < 0 && l != nil {
			o.Route.Hops[i].Index = l.Index
		}
	}
	switch o.Verb {
	case DelLink, AddLink, SetMaster, SetVirtual, SetTags, SetHardware, SetLink:
		return f.doLink(o)
	case SetSysctl:
		f.link(o.Index).Sysctls[o.Name] = o.Value
	case AddAddress:
		return f.addAddress(Address{o.Link, o.Index, o.Prefix})
	case DelAddress:
		f.delAddress(Address{o.Link, o.Index, o.Prefix})
	case AddRoute:
		return f.addRoute(o.Route)
	case DelRoute:
		if o.Advertised {
			f.have.Advertised = slices.DeleteFunc(f.have.Advertised, o.Route.same)
		} else {
			// If the message contains no next hops, the kernel does not compare the next hops.
			f.have.Routes = slices.DeleteFunc(f.have.Routes, func(r Route) bool {
				if len(o.Route.Hops) == 0 && o.Route.Link == "" && o.Route.Kind == "" {
					r.Hops = nil
				}
				return r.same(o.Route)
			})
		}
	case AddRule:
		if !slices.Contains(f.have.Rules, o.Rule) {
			f.have.Rules = append(f.have.Rules, o.Rule)
		}
	case DelRule:
		f.have.Rules = slices.DeleteFunc(f.have.Rules, func(r Rule) bool { return r == o.Rule })
	case SetHostname:
		f.have.Hostname = o.Value
	case WriteFile:
		switch o.Name {
		case "resolv.conf":
			f.have.Files.ResolvConf = o.Value
		case "hosts":
			f.have.Files.Hosts = o.Value
		case "hostname":
			f.have.Files.Hostname = o.Value
		}
	default:
		return fmt.Errorf("%v: the fake kernel does not implement this operation", o)
	}
	return nil
}

// link returns the link with this index. The link must exist.
func (f *fake) link(index int) *Link {
	i := slices.IndexFunc(f.have.Links, func(l Link) bool { return l.Index == index })
	return &f.have.Links[i]
}

// all returns the addresses of a link, in the order of their creation.
func (f *fake) all(index int) []netip.Prefix {
	var out []netip.Prefix
	for _, x := range f.have.Foreign {
		if x.Index == index {
			out = append(out, x.Prefix)
		}
	}
	for _, a := range f.have.Addresses {
		if a.Index == index {
			out = append(out, a.Prefix)
		}
	}
	return out
}

func (f *fake) addAddress(a Address) error {
	if slices.Contains(f.have.Addresses, a) {
		return nil
	}
	f.have.Foreign = slices.DeleteFunc(f.have.Foreign, func(x ForeignAddress) bool { return x.Address == a })
	for _, p := range f.all(a.Index) {
		if p.Addr().Is6() && p.Addr() == a.Prefix.Addr() {
			return fmt.Errorf("address %v on %s: %w: the link has %v", a.Prefix, a.Link, unix.EEXIST, p)
		}
	}
	f.have.Addresses = append(f.have.Addresses, a)
	return nil
}

func (f *fake) delAddress(a Address) {
	f.have.Foreign = slices.DeleteFunc(f.have.Foreign, func(x ForeignAddress) bool { return x.Address == a })
	if !slices.Contains(f.have.Addresses, a) {
		return
	}
	first := true
	for _, p := range f.all(a.Index) {
		if p == a.Prefix {
			break
		}
		first = first && p.Masked() != a.Prefix.Masked()
	}
	promote := f.link(a.Index).Sysctls["ipv4/conf/"+a.Link+"/promote_secondaries"] == "1"
	before := slices.Clone(f.have.Addresses)
	f.have.Addresses = slices.DeleteFunc(f.have.Addresses, func(o Address) bool {
		taken := a.Prefix.Addr().Is4() && first && !promote && o.Index == a.Index && o.Prefix.Masked() == a.Prefix.Masked()
		return o == a || taken
	})
	f.dropSourced(before)
	if a.Prefix.Addr().Is4() && !slices.ContainsFunc(f.all(a.Index), func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		f.have.Routes = slices.DeleteFunc(f.have.Routes, func(r Route) bool { return r.Index == a.Index && r.To.Addr().Is4() })
	}
}

func (f *fake) addRoute(r Route) error {
	if slices.ContainsFunc(f.have.Routes, r.same) {
		return nil
	}
	for _, h := range r.Hops {
		if !f.link(h.Index).Up {
			return fmt.Errorf("%v: %w", r, unix.ENETDOWN)
		}
	}
	switch {
	case r.Link != "" && !f.link(r.Index).Up:
		return fmt.Errorf("%v: %w", r, unix.ENETDOWN)
	case slices.ContainsFunc(f.have.Routes, func(o Route) bool { return o.To == r.To && o.Metric == r.Metric && o.Table == r.Table }):
		return fmt.Errorf("%v: %w", r, unix.EEXIST)
	case r.Link == "":
		f.have.Routes = append(f.have.Routes, r)
		return nil
	}
	reachable := !r.Via.IsValid() || r.OnLink || r.Via.IsLinkLocalUnicast()
	for _, p := range f.all(r.Index) {
		reachable = reachable || p.Masked().Contains(r.Via)
	}
	for _, o := range f.have.Routes {
		reachable = reachable || o.Index == r.Index && !o.Via.IsValid() && o.To.Contains(r.Via)
	}
	if !reachable {
		return fmt.Errorf("%v: %w", r, unix.ENETUNREACH)
	}
	f.have.Routes = append(f.have.Routes, r)
	return nil
}

// dropSourced finds the addresses that were removed: those in before that the machine does not have
// any more. It removes the IPv4 routes with such an address as their source, and the source of such
// IPv6 routes.
func (f *fake) dropSourced(before []Address) {
	for _, a := range before {
		ip := a.Prefix.Addr()
		if slices.ContainsFunc(f.have.Addresses, func(o Address) bool { return o.Prefix.Addr() == ip }) {
			continue
		}
		for i, r := range slices.Backward(f.have.Routes) {
			switch {
			case r.Source == ip && ip.Is4():
				f.have.Routes = slices.Delete(f.have.Routes, i, i+1)
			case r.Source == ip:
				f.have.Routes[i].Source = netip.Addr{}
			}
		}
	}
}
