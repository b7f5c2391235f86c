package network

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Rule is a rule of policy routing: packets that match all conditions of the rule use its routing
// table.
type Rule struct {
	IPv6     bool
	Priority uint32       // the kernel tests the rule with the lower number first
	From, To netip.Prefix // an invalid prefix matches any address
	Incoming string       // name of the link that received the packet; empty matches any link
	Mark     uint32       // firewall mark; 0 matches any mark
	Table    uint32
}

// String formats a rule as ip(8) does.
func (r Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule %d:", r.Priority)
	if r.IPv6 {
		b.WriteString(" IPv6")
	}
	if r.From.IsValid() {
		b.WriteString(" from " + r.From.String())
	}
	if r.To.IsValid() {
		b.WriteString(" to " + r.To.String())
	}
	if r.Incoming != "" {
		b.WriteString(" iif " + r.Incoming)
	}
	if r.Mark != 0 {
		fmt.Fprintf(&b, " fwmark %d", r.Mark)
	}
	fmt.Fprintf(&b, " lookup %d", r.Table)
	return b.String()
}

// vrfTable returns the table of the VRF to which a link belongs. It returns 0 for a link outside
// VRFs. It also returns 0 for a VRF link itself, because a route through the VRF link belongs to
// the main table and leads into the VRF.
func vrfTable(links []WantLink, l WantLink) uint32 {
	for _, o := range links {
		if o.Name == l.Master && o.Virtual.VRF != nil {
			return o.Virtual.VRF.Table
		}
	}
	return 0
}

// vrfMetric is the metric of the last route in the table of a VRF. This route rejects all packets
// that match no other route. Without it, the kernel would continue the lookup in the main table
// (Documentation/networking/vrf.rst).
const vrfMetric = 4278198272

// planRoutes adds the routes of Config.Routes, and the last route of each VRF (see vrfMetric).
func (w *Want) planRoutes(c Config, f Facts) {
	for _, r := range c.Routes {
		route := Route{To: r.To.Masked(), Metric: cmp.Or(r.Metric, metricStatic), Table: r.Table, Source: r.Source, Kind: r.Kind}
		for _, h := range r.Hops {
			name, _ := c.find(h.Link, f.Links)
			i := slices.IndexFunc(w.Links, func(l WantLink) bool { return l.Name == name })
			if i < 0 {
				continue // Missing reports the link
			}
			on := !h.Via.IsLinkLocalUnicast() && !slices.ContainsFunc(w.Addresses, func(a Address) bool { return a.Link == name && a.Prefix.Masked().Contains(h.Via) })
			route.Hops = append(route.Hops, Hop{Link: name, Index: w.Links[i].Index, Via: h.Via, Weight: cmp.Or(h.Weight, 1), OnLink: on})
		}
		switch {
		case len(r.Hops) > 0 && len(route.Hops) == 0:
			continue
		case len(route.Hops) == 1: // the kernel stores a single next hop as a plain route
			h := route.Hops[0]
			route.Link, route.Index, route.Via, route.OnLink, route.Hops = h.Link, h.Index, h.Via, h.OnLink, nil
		}
		sortHops(route.Hops)
		w.addRoute(route)
	}
	for _, l := range w.Links {
		if l.Virtual.VRF == nil {
			continue
		}
		for _, to := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if to.Is4() || hasIPv6(f.Links) {
				w.addRoute(Route{To: netip.PrefixFrom(to, 0), Metric: vrfMetric, Table: l.Virtual.VRF.Table, Kind: "unreachable"})
			}
		}
	}
}

// hasIPv6 reports whether the kernel has IPv6. The links then have IPv6 sysctls.
func hasIPv6(links []Link) bool {
	return slices.ContainsFunc(links, func(l Link) bool {
		return slices.ContainsFunc(sortedKeys(l.Sysctls), func(key string) bool { return strings.HasPrefix(key, "ipv6/") })
	})
}

// sortHops sorts next hops by link and address, so that lists from the plan and from the kernel can
// be compared.
func sortHops(hops []Hop) {
	slices.SortFunc(hops, func(a, b Hop) int { return cmp.Or(strings.Compare(a.Link, b.Link), a.Via.Compare(b.Via)) })
}

// same reports whether two routes are equal. It ignores OnLink and the names of links.
func (r Route) same(o Route) bool {
	hops := slices.EqualFunc(r.Hops, o.Hops, func(a, b Hop) bool { return a.Index == b.Index && a.Via == b.Via && a.Weight == b.Weight })
	return r.Index == o.Index && r.To == o.To && r.Via == o.Via && r.Metric == o.Metric && r.Table == o.Table && r.Source == o.Source && r.Kind == o.Kind && hops
}

// uses reports whether a route sends packets by the link with an index, directly or by a next hop.
func (r Route) uses(index int) bool {
	return r.Index == index || slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Index == index })
}

// String formats a route as ip(8) does, with the destination first.
func (r Route) String() string {
	var b strings.Builder
	b.WriteString("route ")
	if r.Kind != "" {
		b.WriteString(r.Kind + " ")
	}
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
	if r.Link != "" {
		b.WriteString(" on " + r.Link)
	}
	for _, h := range r.Hops {
		fmt.Fprintf(&b, " via %v on %s weight %d", h.Via, h.Link, h.Weight)
	}
	fmt.Fprintf(&b, " metric %d", r.Metric)
	if r.Table != 0 {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	if r.Source.IsValid() {
		b.WriteString(" src " + r.Source.String())
	}
	if r.OnLink {
		b.WriteString(" onlink")
	}
	return b.String()
}
