package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/sysctl"
)

// Link is a link as the kernel has it.
type Link struct {
	Name     string
	Index    int
	MAC      string // lower case with colons; empty when it has none
	MTU      int    // bytes
	Up       bool   // administratively
	Carrier  bool   // there is a cable and it is ready to send (IFF_RUNNING)
	Loopback bool
	Ethernet bool   // ARPHRD_ETHER
	Kind     string // IFLA_INFO_KIND: "veth", "bridge", "wireguard"; empty for what has hardware
	Driver   string // of the hardware; empty when there is none
	// What the sysctls of the link hold; see sysctls.
	Sysctls map[string]string
}

// Physical reports whether it is an Ethernet link with hardware (real or of a virtual machine)
// behind it.
func (l Link) Physical() bool { return l.Ethernet && l.Kind == "" && !l.Loopback }

// Have is what the kernel holds: every link, and those addresses and routes that carry the mark.
type Have struct {
	Links     []Link
	Addresses []Address
	Routes    []Route
	// Foreign are the other addresses, by the way they came. They are shown, and changed only where
	// they came by router advertisement to a link that takes none; so are Advertised, the routes
	// that came this way.
	Foreign    []ForeignAddress
	Advertised []Route
	Hostname   string
	Files      Files
}

// ForeignAddress is an address that does not carry the mark.
type ForeignAddress struct {
	Address
	Origin     string // "kernel" (loopback, link-local, router advertisement) or "other"
	Advertised bool   // it came by router advertisement
	Unfit      string // see AddressState
}

// Verb is what an Op does.
type Verb int

// The verbs, in the order in which Diff uses them; see Diff.
const (
	SetSysctl Verb = iota + 1
	SetLink
	DelRoute
	DelAddress
	AddAddress
	AddRoute
	SetHostname
	WriteFile
)

// Op is one change, as a value. Kernel.Bind makes it something that can be done.
type Op struct {
	Verb    Verb
	Link    string
	Index   int
	Up      bool // SetLink: set up
	Down    bool // SetLink: set down
	MTU     int  // SetLink: bytes, 0 leaves it
	Prefix  netip.Prefix
	Route   Route
	Name    string // SetSysctl: the key below net; WriteFile: resolv.conf, hosts or hostname
	Value   string // SetSysctl, SetHostname and WriteFile: the new value
	Adopted bool   // AddAddress: it exists, only the mark is new
	// DelRoute and DelAddress: it carries no mark, but came by router advertisement.
	Advertised bool
}

func (o Op) address() Address { return Address{o.Link, o.Index, o.Prefix} }

// String says what is done as an operator would.
func (o Op) String() string {
	del := ": delete"
	if o.Advertised {
		del += ", it came by router advertisement"
	}
	switch o.Verb {
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
	case SetHostname:
		return "hostname: " + o.Value
	case WriteFile:
		return fmt.Sprintf("file %s: %s", o.Name, strings.ReplaceAll(strings.TrimSuffix(o.Value, "\n"), "\n", "; "))
	}
	return fmt.Sprintf("unknown operation %d", o.Verb)
}

// String writes a route as ip(8) does, with the destination first.
func (r Route) String() string {
	var b strings.Builder
	b.WriteString("route ")
	switch {
	case r.To.Bits() != 0:
		b.WriteString(r.To.String())
	case r.To.Addr().Is6():
		b.WriteString("default (IPv6)")
	default:
		b.WriteString("default")
	}
	if r.Via.IsValid() {
		b.WriteString(" via " + r.Via.String())
	}
	fmt.Fprintf(&b, " on %s metric %d", r.Link, r.Metric)
	if r.OnLink {
		b.WriteString(" onlink")
	}
	return b.String()
}

// String writes an address with its link.
func (a Address) String() string { return fmt.Sprintf("address %v on %s", a.Prefix, a.Link) }

// same reports whether the kernel would take two routes for one.
func (r Route) same(o Route) bool {
	return r.Index == o.Index && r.To == o.To && r.Via == o.Via && r.Metric == o.Metric
}

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

// Diff returns what to do to get from have to want, in an order in which the kernel follows and no
// connection is lost that need not be: sysctls (they rule what comes after), links, old routes, new
// addresses, old addresses (after the new ones: a link that loses its last IPv4 address loses its
// routes), new routes, names. It is pure.
func Diff(have Have, want Want) []Op {
	ops := diffLinks(have, want)
	// The kernel lists in an order of its own; a dry run says the same twice.
	have.Addresses, have.Routes = sorted(have.Addresses), sorted(have.Routes)
	have.Foreign, have.Advertised = sorted(have.Foreign), sorted(have.Advertised)
	for _, r := range have.Advertised {
		if want.takesNone(r.Index) {
			ops = append(ops, Op{Verb: DelRoute, Link: r.Link, Index: r.Index, Route: r, Advertised: true})
		}
	}
	for _, r := range have.Routes {
		if !slices.ContainsFunc(want.Routes, r.same) {
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
		if !slices.ContainsFunc(have.Routes, r.same) || losesIPv4(have, want, r) {
			ops = append(ops, Op{Verb: AddRoute, Link: r.Link, Index: r.Index, Route: r})
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

// takesNone reports whether a link takes no router advertisements. What came by earlier ones has to
// go, or it would work until it expires, and a configuration on trial would be confirmed over it.
func (w Want) takesNone(index int) bool {
	return slices.ContainsFunc(w.Links, func(l WantLink) bool { return l.Index == index && !l.Loopback && !l.AcceptRA })
}

func diffLinks(have Have, want Want) []Op {
	var settings, links []Op
	for _, w := range want.Links {
		i := slices.IndexFunc(have.Links, func(l Link) bool { return l.Index == w.Index })
		if i < 0 {
			continue // it went since the plan; its end is an event of its own
		}
		l, set := have.Links[i], sysctls(w)
		for _, key := range sortedKeys(set) {
			// A key that does not exist (IPv6 is off) has nothing to be set to.
			if now, ok := l.Sysctls[key]; ok && now != set[key] {
				settings = append(settings, Op{Verb: SetSysctl, Link: w.Name, Index: w.Index, Name: key, Value: set[key]})
			}
		}
		// Two operations, up first: an MTU that the hardware refuses must not keep the link down.
		if !l.Up {
			links = append(links, Op{Verb: SetLink, Link: w.Name, Index: w.Index, Up: true})
		}
		if w.MTU != 0 && w.MTU != l.MTU {
			links = append(links, Op{Verb: SetLink, Link: w.Name, Index: w.Index, MTU: w.MTU})
		}
	}
	return append(settings, links...)
}

func diffAddresses(have Have, want Want) []Op {
	var before, add, after []Op
	for _, a := range want.Addresses {
		if slices.Contains(have.Addresses, a) {
			continue
		}
		op := Op{Verb: AddAddress, Link: a.Link, Index: a.Index, Prefix: a.Prefix}
		op.Adopted = slices.ContainsFunc(have.Foreign, func(f ForeignAddress) bool { return f.Address == a })
		add = append(add, op)
	}
	del := func(a Address, advertised bool) {
		if slices.Contains(want.Addresses, a) {
			return
		}
		op := Op{Verb: DelAddress, Link: a.Link, Index: a.Index, Prefix: a.Prefix, Advertised: advertised}
		// The kernel has an IPv6 address once, whatever its prefix length: it goes before it can
		// come back.
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
		if f.Advertised && want.takesNone(f.Index) {
			del(f.Address, true)
		}
	}
	return slices.Concat(before, add, after)
}

// losesIPv4 reports whether the kernel will drop a route although it is wanted, because the last
// IPv4 address of its link goes.
func losesIPv4(have Have, want Want, r Route) bool {
	if !r.To.Addr().Is4() {
		return false
	}
	on := func(a Address) bool { return a.Index == r.Index && a.Prefix.Addr().Is4() }
	foreign := slices.ContainsFunc(have.Foreign, func(f ForeignAddress) bool { return on(f.Address) })
	return slices.ContainsFunc(have.Addresses, on) && !slices.ContainsFunc(want.Addresses, on) && !foreign
}

// sorted returns a list in the order of its lines.
func sorted[T fmt.Stringer](list []T) []T {
	return slices.SortedFunc(slices.Values(list), func(a, b T) int { return strings.Compare(a.String(), b.String()) })
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
