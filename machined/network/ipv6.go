package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
)

// LinkIPv6 is the automatic IPv6 configuration of a link.
type LinkIPv6 struct {
	// AcceptRA means that the link takes addresses, routes, resolvers and search domains from
	// router advertisements. The kernel normally ignores router advertisements on a machine that
	// forwards packets, so AcceptRA overrides this default.
	AcceptRA bool
	DHCP6    DHCP6
	Prefix   *Delegation // the use of a delegated prefix; nil means that none is requested
}

// Delegation is the use of a delegated prefix.
type Delegation struct {
	Length  int // the requested length in bits, 48 to 64
	Subnets []Subnet
}

// Subnet assigns a /64 of a delegated prefix to a link. The link gets the first address of the /64.
type Subnet struct {
	Link   string // selector of the link that gets the address
	Number uint64 // number of the /64 in the prefix, from 0
}

// DHCP6 is the use of DHCPv6 on a link.
type DHCP6 string

const (
	// DHCP6Off requests only a delegated prefix, if LinkIPv6.Prefix is set.
	DHCP6Off DHCP6 = ""
	// DHCP6Auto requests addresses if routers set the flag M, and settings if routers set the flag
	// O (RFC 4861 section 4.2).
	DHCP6Auto DHCP6 = "auto"
	// DHCP6Stateless requests settings: resolvers, search domains and time servers.
	DHCP6Stateless DHCP6 = "stateless"
	// DHCP6Stateful requests addresses and settings.
	DHCP6Stateful DHCP6 = "stateful"
)

// RouterFlags are flags of router advertisements on a link. Kernel.Read returns the flags of the
// last router advertisement. The controller adds the flags of earlier router advertisements
// (latchFlags).
type RouterFlags struct {
	Managed bool `json:"managed"` // flag M: a DHCPv6 server grants addresses
	Other   bool `json:"other"`   // flag O: a DHCPv6 server provides settings
}

// Values of AddressState.Origin for addresses of leases and of delegated prefixes.
const (
	originDHCP   = "dhcp"
	originPrefix = "prefix"
)

// mode returns the DHCPv6 requests of a link. It returns nil if the link requests nothing.
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

// linkSettings are the settings that DHCP or router advertisements provide on a link.
type linkSettings struct {
	dns      []netip.Addr
	search   []string
	ntp      []string
	hostname string // only from DHCPv4; empty without a host name
}

// settings returns the settings that DHCP and router advertisements provide, in order of
// preference. On the same link, DHCP precedes router advertisements (RFC 8106 section 5.3.1). Links
// in VRFs are omitted, because the machine itself uses the main table and cannot reach their
// servers.
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

// planDelegation adds the addresses from the delegated prefix of the n-th link. It also adds a
// route that rejects packets to unused subnets of the prefix. Without this route, the packets would
// loop between the machine and its router (RFC 7084, WPD-5).
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
			continue // problems6 and Missing report this
		}
		w.addAddress(Address{Link: name, Index: w.Links[i].Index, Prefix: netip.PrefixFrom(subnet.Addr().Next(), 64)}, originPrefix)
	}
	w.addRoute(Route{To: prefix, Metric: metricLease + uint32(n), Table: vrfTable(w.Links, l), Kind: "unreachable"})
}

// subnets returns the subnets of the delegated prefix. It returns nil if no prefix is requested.
func (c LinkIPv6) subnets() []Subnet {
	if c.Prefix == nil {
		return nil
	}
	return c.Prefix.Subnets
}

// delegated returns the first delegated prefix in the lease of a link. It returns false if the link
// requests no prefix or has none.
func delegated(f Facts, l WantLink) (netip.Prefix, bool) {
	lease := f.Leases6[l.Name]
	if l.DHCP6 == nil || l.DHCP6.Prefix == 0 || l.Config < 0 || lease == nil || len(lease.Prefixes) == 0 {
		return netip.Prefix{}, false
	}
	return lease.Prefixes[0].Prefix, true
}

// subnetOf returns the /64 with the number n in a prefix. It returns false if the prefix has at
// most n subnets, or if it is longer than 64 bits.
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

// linkLocalReady reports whether a link is ready to send IPv6: it is up, has a carrier, and has a
// link-local address that passed duplicate address detection.
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
	Phase string       `json:"phase"`
	Lease *dhcp6.Lease `json:"lease,omitempty"` // the active lease
	// expiry of the lease; zero if the lease never expires
	Expires  time.Time `json:"expires,omitzero"`
	Attempts int       `json:"attempts"` // messages sent in this phase
	Problem  string    `json:"problem,omitempty"`
}

// AdvertisedState has the values of router advertisements that the package reads. The kernel itself
// configures the addresses and routes.
type AdvertisedState struct {
	RouterFlags
	ra.Info
	Problem string `json:"problem,omitempty"` // the last unusable part of an advertisement
}

// observation6 is the IPv6 part of an observation.
type observation6 struct {
	leases   map[string]*dhcp6.Lease // by name of the link
	routers  map[string]ra.Info      // by name of the link
	clients  map[int]dhcp6.Status    // by index of the link
	problems map[int]string          // problems of router advertisements, by index of the link
}

// describe6 adds the states of DHCPv6 and of router advertisements to the state of a link.
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

// requests returns the value of DHCP6State.Requests for a mode.
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

// problems6 returns the problems of DHCPv6 in a State, as one line each. want are the planned
// links.
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
