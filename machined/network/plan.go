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

// Config is the network configuration. The zero Config is for a machine without a configuration:
// DHCPv4, router advertisements and, as these say, DHCPv6 on every physical Ethernet link. It is
// validated: prefixes are valid, names are unique.
type Config struct {
	Hostname string       // empty: from a lease, else DefaultHostname
	Links    []LinkConfig // in order of preference; empty: every physical Ethernet link
	DNS      []netip.Addr // empty: from the leases and router advertisements
	// Stub is the address on loopback where the machine's programs send their queries instead;
	// zero: none
	Stub   netip.Addr
	Search []string // search domains; empty: from the leases and router advertisements
	// time servers, addresses or names; empty: from the leases and router advertisements
	NTP    []string
	Clocks []string // entries of the list of time servers before these servers
	// Routes are routes without a link, and routes with several next hops.
	Routes []RouteConfig
	Rules  []Rule
}

// LinkConfig is the configuration of a link. Exactly one of Name, MAC and Match is set.
type LinkConfig struct {
	Name      string
	MAC       net.HardwareAddr // selects the physical link with this permanent address
	Match     *Match           // selects all matching hardware that no earlier entry selects
	MTU       int              // bytes; 0: from the lease, else the default (see planMTU)
	DHCP4     bool
	IPv6      LinkIPv6
	Addresses []netip.Prefix
	Routes    []RouteConfig
	// Virtual is the definition of a link that the package creates, with Name; its parts are
	// selectors.
	Virtual  Virtual
	Members  []Member          // the links that belong to the link
	Hardware map[string]string // settings of hardware by name; see HardwareRX
	// Untagged is the VLAN of the machine's own frames without a tag, for a bridge with VLAN
	// filtering; 0: none.
	Untagged int
}

// Member is a link that belongs to another.
type Member struct {
	Selector string
	Tags     string // with VLAN filtering: the VLANs of the member; see Tags
}

// RouteConfig is a static route.
type RouteConfig struct {
	To     netip.Prefix
	Via    netip.Addr // invalid: the destination is on the link
	Metric uint32     // 0: see the metrics below; the lower metric wins
	Table  uint32     // 0: the table of the link's VRF, else the main table
	Source netip.Addr // preferred source address; invalid: the kernel's choice
	Kind   string     // see Route; only in Config.Routes
	Hops   []Hop      // only in Config.Routes; Link is a selector, and Index is not set
}

// Protocol marks addresses and routes of this package (IFA_PROTO, rtm_protocol).
const Protocol = rtnl.ProtoMachine

// Metrics of routes without a configured metric. The n-th link in order of preference adds n, so
// that two links can both have a default route: the first route wins, and the other takes over when
// the first link loses its routes or its carrier (see sysctls).
const (
	metricStatic = 512
	metricLease  = 1024
)

// DefaultHostname is the host name without configuration and lease.
const DefaultHostname = "orlop"

// Facts are the properties of the machine that Plan needs.
type Facts struct {
	Links  []Link                 // existing links
	Leases map[string]*dhcp.Lease // active leases, by link name
	// Leases6 are the active leases of DHCPv6, Routers the values of router advertisements, both by
	// link name.
	Leases6 map[string]*dhcp6.Lease
	Routers map[string]ra.Info
	MTUs    map[int]int // original MTUs of links, by index; see formerMTUs
	// Hardware are the original settings of hardware; see formerHardware.
	Hardware map[int]map[string]string
}

// Want is the desired state of the kernel. Links are in order of preference, all other lists in the
// order of creation.
type Want struct {
	Links     []WantLink
	Addresses []Address
	Routes    []Route
	Rules     []Rule
	Hostname  string
	Files     Files
	// Leased are the origins of addresses that are not static: originDHCP or originPrefix.
	Leased map[Address]string
}

// WantLink is a managed link. It is always up.
type WantLink struct {
	Name     string
	Index    int // negative: the link does not exist yet; an operation finds it by its name
	MTU      int // 0: unchanged
	Loopback bool
	DHCP4    bool
	AcceptRA bool
	DHCP6    *dhcp6.Mode // the requests of the link by DHCPv6; nil: none
	Config   int         // index in Config.Links; -1 without an entry
	Virtual  Virtual     // of a link that the package creates; its parts are names
	Membership
	Hardware map[string]string // settings of hardware
	MAC      string            // of a link that is created; empty: the kernel's choice
}

// Address is an address on a link, with the mark.
type Address struct {
	Link   string
	Index  int
	Prefix netip.Prefix
}

// Route is a route with the mark. Its key in the kernel is destination, metric and table.
type Route struct {
	Link   string // empty with a kind or several next hops
	Index  int    // 0 without a link
	To     netip.Prefix
	Via    netip.Addr // invalid: on the link
	Metric uint32     // never 0
	// OnLink means that Via is reachable although no address of the link covers it, as in some
	// clouds. The comparison of routes ignores it.
	OnLink bool
	Table  uint32     // 0: the main table
	Source netip.Addr // preferred source address; invalid: none
	Kind   string     // "blackhole", "unreachable", "prohibit"; empty: the packets are sent
	Hops   []Hop      // two or more next hops, sorted; otherwise none
}

// Hop is a next hop of a route with several.
type Hop struct {
	Link   string
	Index  int
	Via    netip.Addr
	Weight int  // 1 to 256: its share of the packets
	OnLink bool // as in Route
}

// Files are the files of name resolution.
type Files struct {
	ResolvConf string
	Hosts      string
	Hostname   string
}

// Plan returns the desired state of the kernel. It is pure. It omits configured links that do not
// exist; see Missing.
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

// planAddresses adds the addresses and routes of the n-th link.
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
			// The routes to neighbors are those of router advertisements (RFC 5942 section 4).
			w.addAddress(Address{Link: l.Name, Index: l.Index, Prefix: netip.PrefixFrom(a.Addr, 128)}, originDHCP)
		}
	}
	// A route with a next hop behind another route of this link comes after that route (RFC 3442
	// servers send the two).
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

// addAddress adds an address, unless the link has it already: the kernel has an address once per
// link, an IPv6 address regardless of the prefix length. origin is empty for a static address and
// an IPv4 address.
func (w *Want) addAddress(a Address, origin string) {
	if slices.ContainsFunc(w.Addresses, func(o Address) bool { return o.Index == a.Index && o.Prefix.Addr() == a.Prefix.Addr() }) {
		return
	}
	w.Addresses = append(w.Addresses, a)
	if origin != "" {
		w.Leased[a] = origin
	}
}

// addRoute adds a route, unless a route of a more preferred link has its key in the kernel.
func (w *Want) addRoute(r Route) {
	if !slices.ContainsFunc(w.Routes, func(o Route) bool { return o.To == r.To && o.Metric == r.Metric && o.Table == r.Table }) {
		w.Routes = append(w.Routes, r)
	}
}

func planHostname(c Config, f Facts, links []WantLink) string {
	if c.Hostname != "" {
		return c.Hostname
	}
	for _, s := range settings(f, links) {
		// With a loopback name the machine would connect to itself instead of another machine.
		if s.hostname != "" && !strings.HasPrefix(s.hostname, "localhost") {
			return s.hostname
		}
	}
	return DefaultHostname
}

// planTimeServers returns the configured time servers, else the time servers of the leases, in
// order of preference, after the clocks. There is no default: without any, the machine queries no
// time server.
func planTimeServers(c Config, f Facts, links []WantLink) []string {
	out := appendNew(slices.Clone(c.Clocks), c.NTP...)
	if len(c.NTP) == 0 {
		for _, s := range settings(f, links) {
			out = appendNew(out, s.ntp...)
		}
	}
	return out
}

// appendNew appends the elements that are not in the list yet.
func appendNew[T comparable](list []T, more ...T) []T {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
