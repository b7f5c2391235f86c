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
	Up       bool   // administratively
	Carrier  bool   // a cable is connected and the link is ready to send (IFF_RUNNING)
	Loopback bool
	Ethernet bool   // ARPHRD_ETHER
	Kind     string // IFLA_INFO_KIND: "veth", "bridge", "wireguard"; empty for hardware
	// Values of the link's sysctls; see sysctls.
	Sysctls map[string]string
	Device
	Membership
	Own     bool    // the package created it: it has the mark
	Virtual Virtual // its definition; empty for a kind that the package does not create
	Router  RouterFlags
}

// Device is the hardware of a link.
type Device struct {
	Driver    string // empty without a driver
	Path      string // below /sys/devices; empty without a device
	Permanent string // MAC of the hardware, in the form of Link.MAC; empty if it is unknown
	// Settings are the wanted settings that the driver has; see LinkConfig.Hardware.
	Settings map[string]string
	Function bool // a virtual function of another card (SR-IOV)
}

// Membership is the place of a link in another link.
type Membership struct {
	Master string // name of the bond, bridge or VRF; empty: none
	// Tags are the VLANs of a member of a bridge with VLAN filtering, and of the bridge itself; see
	// func Tags.
	Tags string
}

// Physical reports whether it is an Ethernet link with real or virtual hardware.
func (l Link) Physical() bool { return l.Ethernet && l.Kind == "" && !l.Loopback }

// Have is the actual state in the kernel: every link, and the addresses and routes with the mark.
type Have struct {
	Links     []Link
	Addresses []Address
	Routes    []Route
	// Foreign are the other addresses, by origin. They are reported. The controller changes them
	// only if they came by router advertisement to a link that accepts none. The same holds for
	// Advertised, the routes from router advertisements.
	Foreign    []ForeignAddress
	Advertised []Route
	Rules      []Rule // with the mark
	Hostname   string
	Files      Files
	// Unfit are the values of AddressState.Unfit of Addresses; an address without a value is fit.
	Unfit map[Address]string
}

// ForeignAddress is an address without the mark.
type ForeignAddress struct {
	Address
	Origin     string // "kernel" (loopback, link-local, router advertisement) or "other"
	Advertised bool   // it came by router advertisement
	Unfit      string // see AddressState
}

// Verb is the kind of an Op.
type Verb int

// The verbs, in the order in which Diff uses them; see Diff.
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

// Op is a single change, as a value. Kernel.Bind makes it executable.
type Op struct {
	Verb   Verb
	Link   string
	Index  int  // negative: the link is created before; its name identifies it
	Up     bool // SetLink: set up
	Down   bool // SetLink: set down
	MTU    int  // SetLink: bytes, 0: unchanged
	Prefix netip.Prefix
	Route  Route
	// SetSysctl: the key below net; WriteFile: resolv.conf, hosts or hostname; SetMaster: the link
	// to which it belongs, empty for none; SetHardware: the setting
	Name    string
	Value   string // SetSysctl, SetTags, SetHardware, SetHostname and WriteFile: the new value
	Adopted bool   // AddAddress: the address exists, only the mark is new
	Detect  bool   // AddAddress: with duplicate address detection
	// DelRoute and DelAddress: it has no mark, but came by router advertisement.
	Advertised bool
	Rule       Rule
	Change     Change // DelLink, AddLink, SetMaster, SetVirtual and SetHardware
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

// sysctls returns the parameters of a managed link (sysctl.Links), by path below /proc/sys/net,
// because a link's name can contain dots.
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

// Diff returns the operations from have to want, in an order that the kernel accepts and that
// avoids needless connection losses: sysctls (they affect the rest), links, old routes, new
// addresses, old addresses (after the new addresses: a link that loses its last IPv4 address loses
// its routes), new routes, names. It is pure.
func Diff(have Have, want Want) []Op {
	ops, have, want := diffLinks(have, want)
	// The order of the kernel is arbitrary; sorting makes dry runs repeatable.
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

// ignoresRA reports whether a link accepts no router advertisements. Addresses and routes of
// earlier advertisements must be removed; otherwise they would work until they expire, and the
// operator could confirm a configuration on trial over them.
func (w Want) ignoresRA(index int) bool {
	return slices.ContainsFunc(w.Links, func(l WantLink) bool { return l.Index == index && !l.Loopback && !l.AcceptRA })
}

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
		// The kernel has an IPv6 address once per link, regardless of its prefix length: it must be
		// removed before it is added with a new length.
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

// losesIPv4 reports whether the kernel will drop a wanted route because the last IPv4 address of
// its link is removed.
func losesIPv4(have Have, want Want, r Route) bool {
	if !r.To.Addr().Is4() || r.Link == "" {
		return false
	}
	on := func(a Address) bool { return a.Index == r.Index && a.Prefix.Addr().Is4() }
	foreign := slices.ContainsFunc(have.Foreign, func(f ForeignAddress) bool { return on(f.Address) })
	return slices.ContainsFunc(have.Addresses, on) && !slices.ContainsFunc(want.Addresses, on) && !foreign
}

// losesSource reports whether the kernel will drop the source of a wanted IPv6 route: the address
// is removed before it is added with another prefix length. The route is deleted before, because
// the kernel takes a route without a source for the same route.
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

// sorted returns a list in the order of its string forms.
func sorted[T fmt.Stringer](list []T) []T {
	return slices.SortedFunc(slices.Values(list), func(a, b T) int { return strings.Compare(a.String(), b.String()) })
}
