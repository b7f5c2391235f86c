package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

// Link is a link in the kernel.
type Link struct {
	Name     string
	Index    int
	MAC      string // lower case with colons; empty without a MAC
	MTU      int    // bytes
	Up       bool   // an operator or the package has set the link up (IFF_UP)
	Carrier  bool   // a cable is connected and the link is ready to send (IFF_RUNNING)
	Loopback bool
	Ethernet bool   // ARPHRD_ETHER
	Kind     string // IFLA_INFO_KIND: "veth", "bridge", "wireguard"; empty for hardware
	// Sysctls are the present values of the sysctls, by path below /proc/sys/net.
	Sysctls map[string]string
	Device
	Membership
	Own     bool    // the link has the mark, so the package has created it
	Virtual Virtual // definition of the link; empty for a kind that the package does not create
	Router  RouterFlags
}

// Device is the hardware of a link.
type Device struct {
	Driver    string // empty without a driver
	Path      string // below /sys/devices; empty without a device
	Permanent string // MAC of the hardware, formatted as Link.MAC; empty if it is unknown
	// Settings are the present values of the hardware settings that the configuration names and the
	// driver has; see LinkConfig.Hardware.
	Settings map[string]string
	Function bool // the device is a virtual function of another card (SR-IOV)
}

// Membership says to which link a link belongs, and in which VLANs.
type Membership struct {
	Master string // name of the bond, bridge or VRF; empty without a master
	// Tags are the VLANs of a member of a bridge with VLAN filtering, and of the bridge itself; see
	// func Tags.
	Tags string
}

// Physical reports whether a link is an Ethernet link of real or emulated hardware.
func (l Link) Physical() bool { return l.Ethernet && l.Kind == "" && !l.Loopback }

// Have is the actual state in the kernel: all links, the objects with the mark, and the addresses
// and routes without the mark that Diff needs.
type Have struct {
	Links     []Link
	Addresses []Address
	Routes    []Route
	// Foreign are the addresses without the mark. The State reports them. Diff adopts a foreign
	// address if it is wanted. Advertised are the routes from router advertisements. If a managed
	// link accepts no router advertisements, Diff removes the foreign addresses and the routes that
	// came to this link by router advertisement. It removes no other foreign address.
	Foreign    []ForeignAddress
	Advertised []Route
	Rules      []Rule // rules with the mark
	Hostname   string
	Files      Files
	// Unfit has the value of AddressState.Unfit for addresses in Addresses. An address without an
	// entry is usable.
	Unfit map[Address]string
}

// ForeignAddress is an address without the mark.
type ForeignAddress struct {
	Address
	Origin     string // "kernel" (loopback, link-local, router advertisement) or "other"
	Advertised bool   // the address came by router advertisement
	Unfit      string // see AddressState
}

// Verb is the kind of an Op.
type Verb int

// The verbs. The comment of Diff has the order of the operations.
const (
	DelLink Verb = iota + 1
	AddLink
	SetSysctl
	SetMaster
	SetVirtual
	SetTags
	SetHardware
	SetLink
	DelRule
	DelRoute
	DelAddress
	AddAddress
	AddRoute
	AddRule
	SetHostname
	WriteFile
)

// Op is a single change, as a value. Kernel.Do performs it.
type Op struct {
	Verb   Verb
	Link   string
	Index  int  // negative if an earlier operation creates the link; its name then identifies it
	Up     bool // SetLink: set up
	Down   bool // SetLink: set down
	MTU    int  // SetLink: bytes, 0 for no change
	Prefix netip.Prefix
	Route  Route
	// SetSysctl: path below /proc/sys/net. WriteFile: resolv.conf, hosts or hostname. SetMaster:
	// the new bond, bridge or VRF, empty to leave the present one. SetHardware: name of the
	// setting.
	Name    string
	Value   string // SetSysctl, SetTags, SetHardware, SetHostname and WriteFile: the new value
	Adopted bool   // AddAddress: the address exists without the mark
	Detect  bool   // AddAddress: with duplicate address detection
	// DelRoute and DelAddress: the object came by router advertisement and has no mark.
	Advertised bool
	Rule       Rule
	Change     Change // details of DelLink, AddLink, SetMaster, SetVirtual and SetHardware
}

func (o Op) address() Address { return Address{o.Link, o.Index, o.Prefix} }

// String describes the operation for the operator.
func (o Op) String() string {
	del := ": delete"
	if o.Advertised {
		del += ", it came by router advertisement"
	}
	switch o.Verb {
	case DelLink, AddLink, SetMaster, SetVirtual, SetTags, SetHardware:
		return o.linkString()
	case SetSysctl:
		return fmt.Sprintf("sysctl net/%s = %s", o.Name, o.Value)
	case SetLink:
		var what []string
		if o.Up {
			what = append(what, "up")
		}
		if o.Down {
			what = append(what, "down")
		}
		if o.MTU != 0 {
			what = append(what, "mtu "+strconv.Itoa(o.MTU))
		}
		return fmt.Sprintf("link %s: %s", o.Link, strings.Join(what, ", "))
	case DelAddress:
		return o.address().String() + del
	case AddAddress:
		if o.Adopted {
			return o.address().String() + ": adopt"
		}
		return o.address().String() + ": add"
	case DelRoute:
		return o.Route.String() + del
	case AddRoute:
		return o.Route.String() + ": add"
	case DelRule:
		return o.Rule.String() + del
	case AddRule:
		return o.Rule.String() + ": add"
	case SetHostname:
		return "hostname: " + o.Value
	case WriteFile:
		return fmt.Sprintf("file %s: %s", o.Name, strings.ReplaceAll(strings.TrimSuffix(o.Value, "\n"), "\n", "; "))
	}
	return fmt.Sprintf("unknown operation %d", o.Verb)
}

// String formats an address with its link.
func (a Address) String() string { return fmt.Sprintf("address %v on %s", a.Prefix, a.Link) }

// sysctls returns the wanted sysctls of a managed link (sysctl.Links). The keys are paths below
// /proc/sys/net and not dotted names, because the name of a link can contain dots.
func sysctls(l WantLink) map[string]string {
	if l.Loopback {
		return nil
	}
	out := map[string]string{}
	for _, p := range sysctl.Links {
		if p.Value != "" {
			out[p.Family+"/conf/"+l.Name+"/"+p.Name] = p.Value
		}
	}
	out["ipv6/conf/"+l.Name+"/accept_ra"] = "0"
	if l.AcceptRA {
		out["ipv6/conf/"+l.Name+"/accept_ra"] = sysctl.AcceptRA
	}
	return out
}

// Diff returns the operations from have to want. It is pure. The kernel accepts the order of the
// operations, and the order avoids needless connection losses:
//
//   - Operations on links come first, with the sysctls, which affect the rest (see diffLinks).
//   - Then Diff removes old rules and routes.
//   - New addresses come before the removal of old addresses, because a link that loses its last
//     IPv4 address loses its IPv4 routes.
//   - Then Diff sets unmanaged hardware down, and adds new routes and new rules.
//   - The host name and the files come last.
func Diff(have Have, want Want) []Op {
	ops, have, want := diffLinks(have, want)
	// The order of lists from the kernel is arbitrary. Diff sorts the lists, so dry runs are
	// repeatable.
	have.Addresses, have.Routes, have.Rules = sorted(have.Addresses), sorted(have.Routes), sorted(have.Rules)
	have.Foreign, have.Advertised = sorted(have.Foreign), sorted(have.Advertised)
	for _, r := range have.Rules {
		if !slices.Contains(want.Rules, r) {
			ops = append(ops, Op{Verb: DelRule, Rule: r})
		}
	}
	for _, r := range have.Advertised {
		if want.ignoresRA(r.Index) {
			ops = append(ops, Op{Verb: DelRoute, Link: r.Link, Index: r.Index, Route: r, Advertised: true})
		}
	}
	for _, r := range have.Routes {
		if !slices.ContainsFunc(want.Routes, r.same) || losesSource(have, want, r) {
			ops = append(ops, Op{Verb: DelRoute, Link: r.Link, Index: r.Index, Route: r})
		}
	}
	ops = append(ops, diffAddresses(have, want)...)
	for _, l := range have.Links {
		managed := slices.ContainsFunc(want.Links, func(w WantLink) bool { return w.Index == l.Index })
		if l.Physical() && l.Up && !managed {
			ops = append(ops, Op{Verb: SetLink, Link: l.Name, Index: l.Index, Down: true})
		}
	}
	for _, r := range want.Routes {
		if !slices.ContainsFunc(have.Routes, r.same) || losesIPv4(have, want, r) || losesSource(have, want, r) {
			ops = append(ops, Op{Verb: AddRoute, Link: r.Link, Index: r.Index, Route: r})
		}
	}
	for _, r := range want.Rules {
		if !slices.Contains(have.Rules, r) {
			ops = append(ops, Op{Verb: AddRule, Rule: r})
		}
	}
	if have.Hostname != want.Hostname {
		ops = append(ops, Op{Verb: SetHostname, Value: want.Hostname})
	}
	for _, f := range []struct{ name, have, want string }{
		{"resolv.conf", have.Files.ResolvConf, want.Files.ResolvConf},
		{"hosts", have.Files.Hosts, want.Files.Hosts},
		{"hostname", have.Files.Hostname, want.Files.Hostname},
	} {
		if f.have != f.want {
			ops = append(ops, Op{Verb: WriteFile, Name: f.name, Value: f.want})
		}
	}
	return ops
}

// ignoresRA reports whether a managed link accepts no router advertisements. Diff removes the
// addresses and routes of earlier router advertisements from this link. They would otherwise work
// until they expire, and an operator could confirm a configuration on trial by means of them.
func (w Want) ignoresRA(index int) bool {
	return slices.ContainsFunc(w.Links, func(l WantLink) bool { return l.Index == index && !l.Loopback && !l.AcceptRA })
}

// diffAddresses returns the operations on addresses. Most removals come after the additions.
func diffAddresses(have Have, want Want) []Op {
	var before, add, after []Op
	for _, a := range want.Addresses {
		if slices.Contains(have.Addresses, a) {
			continue
		}
		op := Op{Verb: AddAddress, Link: a.Link, Index: a.Index, Prefix: a.Prefix}
		op.Detect = want.Leased[a] == originDHCP
		op.Adopted = slices.ContainsFunc(have.Foreign, func(f ForeignAddress) bool { return f.Address == a })
		add = append(add, op)
	}
	del := func(a Address, advertised bool) {
		if slices.Contains(want.Addresses, a) {
			return
		}
		op := Op{Verb: DelAddress, Link: a.Link, Index: a.Index, Prefix: a.Prefix, Advertised: advertised}
		// The kernel has an IPv6 address only once per link, regardless of the prefix length. To
		// change the prefix length, the address must be removed before it is added again.
		if a.Prefix.Addr().Is6() && slices.ContainsFunc(add, func(o Op) bool { return o.Index == a.Index && o.Prefix.Addr() == a.Prefix.Addr() }) {
			before = append(before, op)
		} else {
			after = append(after, op)
		}
	}
	for _, a := range have.Addresses {
		del(a, false)
	}
	for _, f := range have.Foreign {
		if f.Advertised && want.ignoresRA(f.Index) {
			del(f.Address, true)
		}
	}
	return slices.Concat(before, add, after)
}

// losesIPv4 reports whether the kernel drops a wanted IPv4 route, because the operations remove the
// last IPv4 address of its link. The route must then be added again.
func losesIPv4(have Have, want Want, r Route) bool {
	if !r.To.Addr().Is4() || r.Link == "" {
		return false
	}
	on := func(a Address) bool { return a.Index == r.Index && a.Prefix.Addr().Is4() }
	foreign := slices.ContainsFunc(have.Foreign, func(f ForeignAddress) bool { return on(f.Address) })
	return slices.ContainsFunc(have.Addresses, on) && !slices.ContainsFunc(want.Addresses, on) && !foreign
}

// losesSource reports whether the kernel drops the source of a wanted IPv6 route, because the
// source address is removed and added with another prefix length. Diff must then delete the route
// first and add it again. Otherwise the kernel would treat the remaining route without a source as
// the wanted route.
func losesSource(have Have, want Want, r Route) bool {
	if !r.Source.Is6() {
		return false
	}
	stays, goes := false, false
	for _, a := range have.Addresses {
		if a.Prefix.Addr() == r.Source {
			stays = stays || slices.Contains(want.Addresses, a)
			goes = true
		}
	}
	return goes && !stays
}

// sorted returns a sorted copy of a list. It compares the String forms of the elements.
func sorted[T fmt.Stringer](list []T) []T {
	return slices.SortedFunc(slices.Values(list), func(a, b T) int { return strings.Compare(a.String(), b.String()) })
}
