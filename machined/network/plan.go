package network

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/dhcp"
	"github.com/orlop-os/orlop/pkg/rtnl"
)

// Config is what the machine's network should be. The zero Config stands for a machine that has
// none yet: DHCPv4 and router advertisements on every physical Ethernet link. It has passed
// validation: prefixes are valid, names unique.
type Config struct {
	Hostname string       // empty: what a lease says, else DefaultHostname
	Links    []LinkConfig // in order of preference; empty: every physical Ethernet link
	DNS      []netip.Addr // empty: what the leases say
	Search   []string     // search domains; empty: what the leases say
	NTP      []string     // time servers, addresses or names; empty: what the leases say
}

// LinkConfig is one link. Exactly one of Name and MAC is set.
type LinkConfig struct {
	Name  string
	MAC   net.HardwareAddr // the physical link with this address
	MTU   int              // bytes; 0: what the lease says, else as the driver has it
	DHCP4 bool
	// IPv6 addresses and routes from router advertisements, although the machine forwards
	AcceptRA  bool
	Addresses []netip.Prefix
	Routes    []RouteConfig
}

// RouteConfig is one static route.
type RouteConfig struct {
	To     netip.Prefix
	Via    netip.Addr // invalid: the destination is on the link
	Metric uint32     // 0: see the metrics below; lower wins
}

// Protocol marks addresses and routes as made by this package (IFA_PROTO, rtm_protocol).
const Protocol = rtnl.ProtoMachine

// Metrics of routes that name none. The n-th link in order of preference adds n, so that two links
// can both have a default route: the first one wins, and the other takes over when it loses its
// routes or its carrier (see sysctls).
const (
	metricStatic = 512
	metricLease  = 1024
)

// DefaultHostname is the name of a machine that nobody has named.
const DefaultHostname = "orlop"

// Facts is what Plan has to know of the machine.
type Facts struct {
	Links  []Link                 // what exists
	Leases map[string]*dhcp.Lease // in force, by the name of the link
	MTUs   map[int]int            // what links had before, by index; see formerMTUs
}

// Want is what the kernel should hold. Links come by preference, everything else in the order it is
// made.
type Want struct {
	Links     []WantLink
	Addresses []Address
	Routes    []Route
	Hostname  string
	Files     Files
}

// WantLink is a link that is managed. It is always up.
type WantLink struct {
	Name     string
	Index    int
	MTU      int // 0: as it is
	Loopback bool
	DHCP4    bool
	AcceptRA bool
	Config   int // which of Config.Links it is; -1 when there is none
}

// Address is an address on a link that carries the mark.
type Address struct {
	Link   string
	Index  int
	Prefix netip.Prefix
}

// Route is a route in the main table that carries the mark.
type Route struct {
	Link   string
	Index  int
	To     netip.Prefix
	Via    netip.Addr // invalid: on the link
	Metric uint32     // never 0
	// OnLink says that Via is reachable although no address of the link covers it, as some clouds
	// have it. It does not count when routes are compared.
	OnLink bool
}

// Files are the files that name things.
type Files struct {
	ResolvConf string
	Hosts      string
	Hostname   string
}

// Plan says what the kernel should hold. It is pure. A configured link that does not exist is left
// out; see Missing.
func Plan(c Config, f Facts) Want {
	w := Want{Links: planLinks(c, f)}
	for n, l := range w.Links {
		if !l.Loopback {
			w.planAddresses(c, f, n, l)
		}
	}
	w.Hostname = planHostname(c, f, w.Links)
	w.Files = planFiles(c, f, w)
	return w
}

// MissingLinks returns the selectors of configured links that do not exist.
func Missing(c Config, f Facts) []string {
	var out []string
	for _, lc := range c.Links {
		if _, ok := selectLink(lc, f.Links); ok {
			continue
		}
		if lc.Name != "" {
			out = append(out, lc.Name)
		} else {
			out = append(out, lc.MAC.String())
		}
	}
	return out
}

func planLinks(c Config, f Facts) []WantLink {
	var out []WantLink
	add := func(l Link, lc LinkConfig, n int) {
		if slices.ContainsFunc(out, func(o WantLink) bool { return o.Index == l.Index }) {
			return // a link named twice, by name and by MAC: the first one counts
		}
		wl := WantLink{Name: l.Name, Index: l.Index, MTU: lc.MTU, DHCP4: lc.DHCP4, AcceptRA: lc.AcceptRA, Config: n}
		// With less than IPv6 needs (RFC 8200) the kernel would take it off the link: a server of
		// IPv4 has no say in that.
		if lease := f.Leases[l.Name]; wl.MTU == 0 && wl.DHCP4 && lease != nil && (lease.MTU >= 1280 || !lc.speaksIPv6()) {
			wl.MTU = lease.MTU
		}
		if wl.MTU == 0 {
			wl.MTU = f.MTUs[l.Index]
		}
		out = append(out, wl)
	}
	if len(c.Links) == 0 {
		for _, l := range sortedLinks(f.Links) {
			if l.Physical() {
				add(l, LinkConfig{DHCP4: true, AcceptRA: true}, -1)
			}
		}
	}
	for n, lc := range c.Links {
		if l, ok := selectLink(lc, f.Links); ok {
			add(l, lc, n)
		}
	}
	for _, l := range f.Links {
		if l.Loopback {
			out = append(out, WantLink{Name: l.Name, Index: l.Index, Loopback: true, Config: -1})
		}
	}
	return out
}

// speaksIPv6 reports whether a link has, or may get, an IPv6 address besides the link-local one.
func (lc LinkConfig) speaksIPv6() bool {
	return lc.AcceptRA || slices.ContainsFunc(lc.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// selectLink finds the link of a configuration. Several links can have one MAC (a VLAN has its
// parent's): a physical one is meant.
func selectLink(lc LinkConfig, links []Link) (Link, bool) {
	for _, l := range sortedLinks(links) {
		switch {
		case l.Loopback:
		case lc.Name != "" && l.Name == lc.Name:
			return l, true
		case lc.Name == "" && l.Physical() && l.MAC == lc.MAC.String():
			return l, true
		}
	}
	return Link{}, false
}

// sortedLinks returns links in the order in which the kernel made them.
func sortedLinks(links []Link) []Link {
	return slices.SortedFunc(slices.Values(links), func(a, b Link) int { return a.Index - b.Index })
}

// planAddresses adds the addresses and routes of the n-th link.
func (w *Want) planAddresses(c Config, f Facts, n int, l WantLink) {
	var addresses []netip.Prefix
	var routes []Route
	add := func(r RouteConfig, metric uint32) {
		if r.Metric == 0 {
			r.Metric = metric + uint32(n)
		}
		routes = append(routes, Route{Link: l.Name, Index: l.Index, To: r.To.Masked(), Via: r.Via, Metric: r.Metric})
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
		a := Address{Link: l.Name, Index: l.Index, Prefix: p}
		// The kernel has an address once on a link; IPv6 whatever the prefix length.
		if !slices.ContainsFunc(w.Addresses, func(o Address) bool { return o.Index == a.Index && o.Prefix.Addr() == p.Addr() }) {
			w.Addresses = append(w.Addresses, a)
		}
	}
	// A route whose next hop is behind another route of this link comes after it (RFC 3442 servers
	// send the two).
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
		// Destination and metric are the key of a route in the kernel: the more preferred link
		// keeps it.
		if !slices.ContainsFunc(w.Routes, func(o Route) bool { return o.To == r.To && o.Metric == r.Metric }) {
			w.Routes = append(w.Routes, r)
		}
	}
}

// leases returns the leases in force on links that ask for one, in order of preference.
func leases(f Facts, links []WantLink) []*dhcp.Lease {
	var out []*dhcp.Lease
	for _, l := range links {
		if lease := f.Leases[l.Name]; l.DHCP4 && lease != nil {
			out = append(out, lease)
		}
	}
	return out
}

func planHostname(c Config, f Facts, links []WantLink) string {
	if c.Hostname != "" {
		return c.Hostname
	}
	for _, l := range leases(f, links) {
		// A name of the loopback would make the machine talk to itself when it means another.
		if l.Hostname != "" && !strings.HasPrefix(l.Hostname, "localhost") {
			return l.Hostname
		}
	}
	return DefaultHostname
}

// planTimeServers takes what is configured, else what the leases say, in order of preference. There
// is no default: a machine that nobody gave a time server asks none.
func planTimeServers(c Config, f Facts, links []WantLink) []string {
	out := c.NTP
	if len(out) == 0 {
		for _, l := range leases(f, links) {
			for _, a := range l.NTP {
				out = appendNew(out, a.String())
			}
		}
	}
	return out
}

// appendNew appends what is not in the list yet.
func appendNew[T comparable](list []T, more ...T) []T {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
