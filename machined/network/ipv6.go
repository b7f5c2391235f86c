package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
)

// LinkIPv6 is the automatic configuration of a link by IPv6.
type LinkIPv6 struct {
	// AcceptRA: addresses, routes, resolvers and search domains from router advertisements,
	// although the machine forwards
	AcceptRA bool
	DHCP6    DHCP6
	Prefix   *Delegation // the use of a delegated prefix; nil: none
}

// Delegation is the use of a delegated prefix.
type Delegation struct {
	Length  int // the wanted length, 48 to 64
	Subnets []Subnet
}

// Subnet is a /64 of a delegated prefix for a link, which gets the first address.
type Subnet struct {
	Link   string // a selector
	Number uint64 // of the /64 in the prefix, from 0
}

// DHCP6 is the use of DHCPv6 on a link.
type DHCP6 string

const (
	// DHCP6Off requests nothing, except a delegated prefix.
	DHCP6Off DHCP6 = ""
	// DHCP6Auto follows the flags M and O of router advertisements (RFC 4861 section 4.2).
	DHCP6Auto DHCP6 = "auto"
	// DHCP6Stateless requests resolvers, search domains and time servers.
	DHCP6Stateless DHCP6 = "stateless"
	// DHCP6Stateful requests addresses, too.
	DHCP6Stateful DHCP6 = "stateful"
)

// RouterFlags are the flags of the last router advertisement on a link.
type RouterFlags struct {
	Managed bool `json:"managed"` // addresses by DHCPv6 (M)
	Other   bool `json:"other"`   // settings by DHCPv6 (O)
}

// The origins of addresses that are not static; see AddressState.
const (
	originDHCP   = "dhcp"
	originPrefix = "prefix"
)

// mode returns the requests of a link by DHCPv6; nil without requests.
func (c LinkIPv6) mode(l Link) *dhcp6.Mode {
	m, settings := dhcp6.Mode{}, false
	if c.Prefix != nil {
		m.Prefix = c.Prefix.Length
	}
	switch c.DHCP6 {
	case DHCP6Auto:
		m.Addresses, settings = l.Router.Managed, l.Router.Other
	case DHCP6Stateless:
		settings = true
	case DHCP6Stateful:
		m.Addresses = true
	}
	if m == (dhcp6.Mode{}) && !settings {
		return nil
	}
	return &m
}

// linkSettings are the settings that a link got from the network.
type linkSettings struct {
	dns      []netip.Addr
	search   []string
	ntp      []string
	hostname string // of DHCPv4; empty: none
}

// settings returns the settings of the links outside VRFs, in order of preference: their servers
// are for the machine itself, which uses the main table. DHCP precedes router advertisements on the
// same link (RFC 8106 section 5.3.1).
func settings(f Facts, links []WantLink) (out []linkSettings) {
	for _, l := range links {
		if vrfTable(links, l) != 0 {
			continue
		}
		if lease := f.Leases[l.Name]; l.DHCP4 && lease != nil {
			s := linkSettings{dns: lease.DNS, search: lease.Search, hostname: lease.Hostname}
			if len(lease.Search) == 0 && lease.Domain != "" {
				s.search = []string{lease.Domain}
			}
			for _, a := range lease.NTP {
				s.ntp = append(s.ntp, a.String())
			}
			out = append(out, s)
		}
		if lease := f.Leases6[l.Name]; l.DHCP6 != nil && lease != nil {
			out = append(out, linkSettings{dns: lease.DNS, search: lease.Search, ntp: lease.NTP})
		}
		if info, ok := f.Routers[l.Name]; l.AcceptRA && ok {
			out = append(out, linkSettings{dns: info.Servers, search: info.Search})
		}
	}
	return out
}

// planDelegation assigns the subnets of the delegated prefix of the n-th link, and rejects packets
// to its other subnets, which would otherwise return to the router and back (RFC 7084, WPD-5).
func (w *Want) planDelegation(c Config, f Facts, n int, l WantLink) {
	prefix, ok := delegated(f, l)
	if !ok {
		return
	}
	for _, s := range c.Links[l.Config].IPv6.subnets() {
		subnet, ok := subnetOf(prefix, s.Number)
		name, found := c.find(s.Link, f.Links)
		i := slices.IndexFunc(w.Links, func(o WantLink) bool { return found && o.Name == name })
		if !ok || i < 0 {
			continue // see problems6 and Missing
		}
		w.addAddress(Address{Link: name, Index: w.Links[i].Index, Prefix: netip.PrefixFrom(subnet.Addr().Next(), 64)}, originPrefix)
	}
	w.addRoute(Route{To: prefix, Metric: metricLease + uint32(n), Table: vrfTable(w.Links, l), Kind: "unreachable"})
}

func (c LinkIPv6) subnets() []Subnet {
	if c.Prefix == nil {
		return nil
	}
	return c.Prefix.Subnets
}

// delegated returns the delegated prefix of a link: the first one.
func delegated(f Facts, l WantLink) (netip.Prefix, bool) {
	lease := f.Leases6[l.Name]
	if l.DHCP6 == nil || l.DHCP6.Prefix == 0 || l.Config < 0 || lease == nil || len(lease.Prefixes) == 0 {
		return netip.Prefix{}, false
	}
	return lease.Prefixes[0].Prefix, true
}

// subnetOf returns the n-th /64 of a prefix of at most 64 bits; false if there are not as many.
func subnetOf(p netip.Prefix, n uint64) (netip.Prefix, bool) {
	free := 64 - p.Bits()
	if free < 0 || free < 64 && n >= 1<<free {
		return netip.Prefix{}, false
	}
	b := p.Masked().Addr().As16()
	for i := 7; i >= 0; i-- {
		b[i] |= byte(n)
		n >>= 8
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), 64), true
}

// linkLocalReady reports whether a link can send: it has a carrier, and a link-local address that
// is no longer tentative.
func linkLocalReady(have Have, l Link) bool {
	return l.Up && l.Carrier && slices.ContainsFunc(have.Foreign, func(a ForeignAddress) bool {
		return a.Index == l.Index && a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() && a.Unfit == ""
	})
}

// DHCP6State is the state of a DHCPv6 client.
type DHCP6State struct {
	// "addresses", "prefix", "addresses and prefix" or "settings"
	Requests string `json:"requests"`
	// init, soliciting, requesting, confirming, bound, renewing, rebinding, informing, informed,
	// declining
	Phase    string       `json:"phase"`
	Lease    *dhcp6.Lease `json:"lease,omitempty"`  // the active lease
	Expires  time.Time    `json:"expires,omitzero"` // expiry of the lease; zero if it never expires
	Attempts int          `json:"attempts"`         // messages sent in this phase
	Problem  string       `json:"problem,omitempty"`
}

// AdvertisedState are the values of router advertisements on a link. The kernel takes the addresses
// and routes from them.
type AdvertisedState struct {
	RouterFlags
	ra.Info
	Problem string `json:"problem,omitempty"` // the last unusable part of an advertisement
}

// observation6 is the part of an observation about IPv6.
type observation6 struct {
	leases   map[string]*dhcp6.Lease // by name of the link
	routers  map[string]ra.Info      // by name of the link
	clients  map[int]dhcp6.Status    // by index of the link
	problems map[int]string          // of router advertisements, by index of the link
}

// describe6 adds the state of DHCPv6 and of router advertisements to a link.
func (o observation) describe6(s *LinkState, l Link, w WantLink) {
	if w.AcceptRA {
		s.Advertised = &AdvertisedState{RouterFlags: l.Router, Info: o.six.routers[l.Name], Problem: o.six.problems[l.Index]}
	}
	if w.DHCP6 == nil || !l.Ethernet {
		return
	}
	c := o.six.clients[l.Index] // the zero value is the state of a new client
	s.DHCP6 = &DHCP6State{Requests: requests(*w.DHCP6), Phase: c.Phase.String(), Lease: c.Lease, Attempts: c.Attempt, Problem: c.Problem}
	if c.Lease != nil {
		s.DHCP6.Expires = c.Lease.Expires()
	}
}

func requests(m dhcp6.Mode) string {
	switch {
	case m.Addresses && m.Prefix != 0:
		return "addresses and prefix"
	case m.Addresses:
		return "addresses"
	case m.Prefix != 0:
		return "prefix"
	}
	return "settings"
}

// problems6 returns the problems of DHCPv6, one line each. want are the planned links.
func (o observation) problems6(s State, f Facts, want []WantLink, now time.Time) (out []string) {
	for _, w := range want {
		prefix, ok := delegated(f, w)
		if !ok {
			continue
		}
		for _, sub := range o.config.Links[w.Config].IPv6.subnets() {
			if _, ok := subnetOf(prefix, sub.Number); !ok {
				out = append(out, fmt.Sprintf("link %s: gets no address: the delegated prefix %v has no subnet %d", sub.Link, prefix, sub.Number))
			}
		}
	}
	for _, l := range s.Links {
		c, ok := o.six.clients[l.Index]
		if !ok || !l.Carrier || c.Lease != nil || c.Attempt == 0 {
			continue
		}
		if waited := now.Sub(c.Since); waited >= leaseGracePeriod {
			line := fmt.Sprintf("link %s: no answer to a DHCPv6 request for %s after %v", l.Name, requests(c.Mode), waited.Round(time.Second))
			if c.Problem != "" {
				line += ": " + c.Problem
			}
			out = append(out, line)
		}
	}
	return out
}
