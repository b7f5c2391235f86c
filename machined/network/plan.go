package network

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// Config is the validated network configuration: prefixes are valid, names are unique. A machine
// without a configuration uses the zero Config. The zero Config means, on each physical Ethernet
// link: DHCPv4, router advertisements, and DHCPv6 if the router advertisements select it.
type Config struct {
	Hostname string       // empty selects the host name of a lease, else DefaultHostname
	Links    []LinkConfig // in order of preference; empty selects every physical Ethernet link
	// resolvers; empty selects the resolvers of leases and router advertisements
	DNS []netip.Addr
	// Stub is an address on loopback to which the programs of the machine send their DNS queries.
	// The zero Addr means that the programs query the resolvers directly.
	Stub netip.Addr
	// search domains; empty selects the search domains of leases and router advertisements
	Search []string
	// time servers, as addresses or names; empty selects the time servers of leases
	NTP    []string
	Clocks []string // clocks of the machine, which precede all time servers in the list
	// Routes are routes without a link, and routes with several next hops. The other routes are in
	// LinkConfig.
	Routes []RouteConfig
	Rules  []Rule
}

// LinkConfig is the configuration of a link. Exactly one of Name, MAC and Match is set.
type LinkConfig struct {
	Name string
	MAC  net.HardwareAddr // selects the physical link with this permanent address
	// selects all matching hardware that no other entry has reserved (see Config.reserved)
	Match *Match
	// bytes; 0 selects the MTU of the lease, else the default (see planMTU)
	MTU       int
	DHCP4     bool
	IPv6      LinkIPv6
	Addresses []netip.Prefix
	// Routes are the static routes that leave by the link.
	Routes []RouteConfig
	// Virtual defines the link if the package creates it under Name; it is empty for hardware. The
	// links that Virtual mentions are selectors.
	Virtual  Virtual
	Members  []Member          // the links that belong to this bond, bridge or VRF
	Hardware map[string]string // settings of hardware, by name (HardwareRX and others)
	// Untagged is the VLAN of the untagged frames that the machine itself sends and receives on a
	// bridge with VLAN filtering. 0 means that the machine uses no untagged frames.
	Untagged int
}

// Member is a link that belongs to a bond, a bridge or a VRF.
type Member struct {
	Selector string
	Tags     string // VLANs of the member of a bridge with VLAN filtering; see func Tags
}

// RouteConfig is a static route.
type RouteConfig struct {
	To     netip.Prefix
	Via    netip.Addr // next hop; invalid if the destination is on the link
	Metric uint32     // the lower metric wins; 0 selects the default (metricStatic, metricLease)
	Table  uint32     // 0 selects the table of the VRF of the link, else the main table
	Source netip.Addr // preferred source address; if it is invalid, the kernel chooses
	Kind   string     // kind of the route, as Route.Kind; only in Config.Routes
	// next hops; only in Config.Routes. Hop.Link is a selector, and Hop.Index is not set.
	Hops []Hop
}

// Protocol is the mark of this package on links (IFLA_GROUP), addresses (IFA_PROTO), routes
// (rtm_protocol) and rules (FRA_PROTOCOL).
const Protocol = rtnl.ProtoMachine

// Metrics of routes without a configured metric. The n-th link in order of preference adds n, so
// two links can both have a default route. The kernel uses the route with the lower metric. The
// other route takes over when the first link loses its route or its carrier (sysctl
// ignore_routes_with_linkdown).
const (
	metricStatic = 512
	metricLease  = 1024
)

// DefaultHostname is the host name if the configuration and the leases contain no host name.
const DefaultHostname = "orlop"

// Facts are the properties of the machine that Plan needs.
type Facts struct {
	Links  []Link                 // existing links
	Leases map[string]*dhcp.Lease // active DHCPv4 leases, by name of the link
	// Leases6 are the active DHCPv6 leases, by name of the link. Routers are the values of router
	// advertisements, by name of the link.
	Leases6 map[string]*dhcp6.Lease
	Routers map[string]ra.Info
	MTUs    map[int]int // original MTUs of links, by index; see formerMTUs
	// Hardware are the original settings of hardware; see formerHardware.
	Hardware map[int]map[string]string
}

// Want is the desired state of the kernel. Links are in order of preference. The other lists are in
// the order in which their elements are added to the kernel.
type Want struct {
	Links     []WantLink
	Addresses []Address
	Routes    []Route
	Rules     []Rule
	Hostname  string
	Files     Files
	// Leased maps an address of a DHCPv6 lease to originDHCP, and an address of a delegated prefix
	// to originPrefix.
	Leased map[Address]string
}

// WantLink is the desired state of a managed link, which includes that the link is up.
type WantLink struct {
	Name string
	// negative if the link does not exist yet; operations then find the link by its name
	Index    int
	MTU      int // bytes; 0 means that the MTU does not change
	Loopback bool
	DHCP4    bool
	AcceptRA bool
	DHCP6    *dhcp6.Mode // the DHCPv6 requests of the link; nil without requests
	Config   int         // index in Config.Links; -1 without an entry
	// definition of a link that the package creates, with names in place of selectors
	Virtual Virtual
	Membership
	Hardware map[string]string // settings of hardware
	MAC      string            // MAC of a link that is created; if it is empty, the kernel chooses
}

// Address is an IP address on a link, with its prefix length.
type Address struct {
	Link   string
	Index  int
	Prefix netip.Prefix
}

// Route is a route. The kernel identifies a route by destination, metric and table.
type Route struct {
	Link   string // empty for a route with a Kind or with several next hops
	Index  int    // 0 without a link
	To     netip.Prefix
	Via    netip.Addr // next hop; invalid if the destination is on the link
	Metric uint32     // never 0
	// OnLink tells the kernel that Via is reachable on the link, although no address of the link
	// covers Via. Some clouds need OnLink. The comparison of routes ignores OnLink.
	OnLink bool
	Table  uint32     // 0: the main table
	Source netip.Addr // preferred source address; invalid if there is none
	// "blackhole", "unreachable", "prohibit"; empty for a route that forwards packets
	Kind string
	Hops []Hop // sorted; empty for a route with fewer than two next hops
}

// Hop is a next hop of a route with several next hops.
type Hop struct {
	Link   string
	Index  int
	Via    netip.Addr
	Weight int  // 1 to 256; the share of the packets is proportional to it
	OnLink bool // as in Route
}

// Files are the contents of the files of name resolution.
type Files struct {
	ResolvConf string
	Hosts      string
	Hostname   string
}

// Plan returns the desired state of the kernel. Plan is pure. It omits configured links if their
// hardware does not exist; Missing returns their selectors.
func Plan(c Config, f Facts) Want {
	w := Want{Links: planLinks(c, f), Leased: map[Address]string{}}
	for n, l := range w.Links {
		if !l.Loopback {
			w.planAddresses(c, f, n, l)
		}
	}
	for n, l := range w.Links {
		w.planDelegation(c, f, n, l)
	}
	w.planRoutes(c, f)
	w.Rules = c.Rules
	w.Hostname = planHostname(c, f, w.Links)
	w.Files = planFiles(c, f, w)
	return w
}

// planAddresses adds the addresses and routes that the configuration and the leases give to the
// n-th link.
func (w *Want) planAddresses(c Config, f Facts, n int, l WantLink) {
	var addresses []netip.Prefix
	var routes []Route
	vrf := vrfTable(w.Links, l)
	add := func(r RouteConfig, metric uint32) {
		if r.Metric == 0 {
			r.Metric = metric + uint32(n)
		}
		if r.Table == 0 {
			r.Table = vrf
		}
		routes = append(routes, Route{Link: l.Name, Index: l.Index, To: r.To.Masked(), Via: r.Via, Metric: r.Metric, Table: r.Table, Source: r.Source})
	}
	if l.Config >= 0 {
		lc := c.Links[l.Config]
		addresses = append(addresses, lc.Addresses...)
		for _, r := range lc.Routes {
			add(r, metricStatic)
		}
	}
	if lease := f.Leases[l.Name]; l.DHCP4 && lease != nil {
		addresses = append(addresses, lease.Address)
		for _, r := range lease.Routes {
			add(RouteConfig{To: r.To, Via: r.Via}, metricLease)
		}
	}
	for _, p := range addresses {
		w.addAddress(Address{Link: l.Name, Index: l.Index, Prefix: p}, "")
	}
	if lease := f.Leases6[l.Name]; l.DHCP6 != nil && lease != nil {
		for _, a := range lease.Addresses {
			// The prefix length is 128 because DHCPv6 does not say which neighbors are on the link.
			// Routes to them come from router advertisements (RFC 5942 section 4).
			w.addAddress(Address{Link: l.Name, Index: l.Index, Prefix: netip.PrefixFrom(a.Addr, 128)}, originDHCP)
		}
	}
	// Routes without a next hop come first, because they can lead to the next hop of another route.
	// DHCP servers send pairs of these routes in option 121 (RFC 3442).
	slices.SortStableFunc(routes, func(a, b Route) int {
		switch av, bv := a.Via.IsValid(), b.Via.IsValid(); {
		case !av && bv:
			return -1
		case av && !bv:
			return 1
		}
		return 0
	})
	for _, r := range routes {
		r.OnLink = r.Via.IsValid() && !r.Via.IsLinkLocalUnicast() && !slices.ContainsFunc(addresses, func(p netip.Prefix) bool {
			return p.Masked().Contains(r.Via)
		}) && !slices.ContainsFunc(routes, func(o Route) bool { return !o.Via.IsValid() && o.To.Contains(r.Via) })
		w.addRoute(r)
	}
}

// addAddress adds an address if the link does not have the same IP address yet. The kernel has an
// IPv6 address only once per link, regardless of the prefix length. origin is originDHCP or
// originPrefix; it is empty for static addresses and DHCPv4.
func (w *Want) addAddress(a Address, origin string) {
	if slices.ContainsFunc(w.Addresses, func(o Address) bool { return o.Index == a.Index && o.Prefix.Addr() == a.Prefix.Addr() }) {
		return
	}
	w.Addresses = append(w.Addresses, a)
	if origin != "" {
		w.Leased[a] = origin
	}
}

// addRoute adds a route if no earlier route has the same key in the kernel. The earlier route
// belongs to a more preferred link.
func (w *Want) addRoute(r Route) {
	if !slices.ContainsFunc(w.Routes, func(o Route) bool { return o.To == r.To && o.Metric == r.Metric && o.Table == r.Table }) {
		w.Routes = append(w.Routes, r)
	}
}

// planHostname returns the configured host name, else the first host name of a lease, else
// DefaultHostname.
func planHostname(c Config, f Facts, links []WantLink) string {
	if c.Hostname != "" {
		return c.Hostname
	}
	for _, s := range settings(f, links) {
		// A leased host name of localhost is ignored, because that name always means the machine on
		// which a program runs.
		if s.hostname != "" && !strings.HasPrefix(s.hostname, "localhost") {
			return s.hostname
		}
	}
	return DefaultHostname
}

// planTimeServers returns the clocks, and then the configured time servers. Without configured time
// servers, it returns the time servers of the leases, in order of preference. There is no default
// time server, so the list can be empty.
func planTimeServers(c Config, f Facts, links []WantLink) []string {
	out := appendNew(slices.Clone(c.Clocks), c.NTP...)
	if len(c.NTP) == 0 {
		for _, s := range settings(f, links) {
			out = appendNew(out, s.ntp...)
		}
	}
	return out
}

// appendNew appends each element of more that list does not contain yet.
func appendNew[T comparable](list []T, more ...T) []T {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
