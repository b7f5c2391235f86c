package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/dhcp"
)

// State is what the machine shows of its network. A value is never changed after it was published.
type State struct {
	Hostname string `json:"hostname"`
	// lo, hardware and what is configured; not the links that others made
	Links       []LinkState  `json:"links"`
	Routes      []RouteState `json:"routes"`      // those made here
	Servers     []netip.Addr `json:"servers"`     // name servers in use
	Search      []string     `json:"search"`      // search domains in use
	TimeServers []string     `json:"timeServers"` // time servers to use; addresses or names
	Node        []netip.Addr `json:"node"`        // NodeAddresses, when nothing else names one
	// whether the kernel holds all that is wanted
	Converged bool `json:"converged"`
	// of the configuration that is meant by that: the cell's
	Revision uint64   `json:"revision"`
	Problems []string `json:"problems"` // what is wrong, one line each
	// operations that did not succeed, and why; they are among the problems too
	Failed []string `json:"failed,omitempty"`
}

// LinkState is one link.
type LinkState struct {
	Name    string `json:"name"`
	Index   int    `json:"index"`
	MAC     string `json:"mac,omitempty"`
	MTU     int    `json:"mtu"`
	Up      bool   `json:"up"`
	Carrier bool   `json:"carrier"`
	Kind    string `json:"kind,omitempty"`   // empty for hardware and lo
	Driver  string `json:"driver,omitempty"` // of the hardware
	// whether the configuration (or its absence) names it
	Managed   bool           `json:"managed"`
	Addresses []AddressState `json:"addresses"`
	DHCP      *DHCPState     `json:"dhcp,omitempty"` // if it asks for a lease
}

// AddressState is one address of a link.
type AddressState struct {
	Prefix netip.Prefix `json:"prefix"`
	// "static", "dhcp", "kernel" (loopback, link-local, router advertisement) or "other"
	Origin string `json:"origin"`
	// Unfit says why nobody should be told of the address: "duplicate" (somebody else has it),
	// "tentative" (whether somebody else has it is being found out), "deprecated" (it is about to
	// go) or "temporary" (for privacy).
	Unfit string `json:"unfit,omitempty"`
}

// RouteState is one route.
type RouteState struct {
	To netip.Prefix `json:"to"`
	// the zero Addr (empty in JSON) when the destination is on the link
	Via    netip.Addr `json:"via"`
	Link   string     `json:"link"`
	Metric uint32     `json:"metric"`
}

// DHCPState is a DHCP client at work.
type DHCPState struct {
	// RFC 2131's: init, selecting, requesting, rebooting, bound, renewing, rebinding
	Phase    string      `json:"phase"`
	Lease    *dhcp.Lease `json:"lease,omitempty"`   // in force
	Expires  time.Time   `json:"expires,omitzero"`  // when the lease ends; zero when never
	Attempts int         `json:"attempts"`          // messages sent in this phase
	Problem  string      `json:"problem,omitempty"` // the last thing that went wrong
}

// Addresses returns the addresses at which others reach the machine: those of managed links that
// are neither loopback nor link-local, in order of the links, IPv4 before IPv6.
func (s State) Addresses() []netip.Addr {
	var v4, v6 []netip.Addr
	for _, l := range s.Links {
		if !l.Managed {
			continue
		}
		for _, a := range l.Addresses {
			switch ip := a.Prefix.Addr(); {
			case !ip.IsGlobalUnicast():
			case ip.Is4():
				v4 = append(v4, ip)
			default:
				v6 = append(v6, ip)
			}
		}
	}
	return append(v4, v6...)
}

// NodeAddresses returns the addresses that stand for the machine, one of each family, IPv4 first.
// It is one of those that are named, else the first that the configuration or a lease gives, else
// the one that it was before, and only then another: processes start anew when it changes.
func (s State) NodeAddresses(named []netip.Addr) []netip.Addr {
	rank := func(a AddressState) int {
		switch ip := a.Prefix.Addr(); {
		case slices.Contains(named, ip):
			return 1
		case a.Origin == "static" || a.Origin == "dhcp":
			return 2
		case slices.Contains(s.Node, ip):
			return 3
		case a.Origin == "kernel":
			return 4
		}
		return 5
	}
	var out []netip.Addr
	for _, family := range []bool{true, false} { // IPv4 or not
		var best AddressState
		for _, l := range s.Links {
			for _, a := range l.Addresses {
				ip := a.Prefix.Addr()
				fits := l.Managed && l.Up && ip.IsGlobalUnicast() && ip.Is4() == family && a.Unfit == ""
				if fits && (!best.Prefix.IsValid() || rank(a) < rank(best)) {
					best = a
				}
			}
		}
		if best.Prefix.IsValid() {
			out = append(out, best.Prefix.Addr())
		}
	}
	return out
}

// observation is all that a State is made of.
type observation struct {
	config   Config
	revision uint64
	node     []netip.Addr // State.Node before
	have     Have
	leases   map[string]*dhcp.Lease
	clients  map[int]dhcp.Status // by index of the link
	failed   []string            // operations that did not succeed
	left     int                 // operations that are left to do
}

// patience is how long a server may take to answer a DHCP client before it is called a problem.
const patience = 3 * time.Second

// describe makes the State of an observation. now dates the problems.
func describe(o observation, now time.Time) State {
	facts := Facts{Links: o.have.Links, Leases: o.leases}
	plan := Plan(o.config, facts)
	want := plan.Links
	r := planResolver(o.config, facts, want)
	s := State{
		Hostname: o.have.Hostname, Servers: r.Servers, Search: r.Search,
		TimeServers: planTimeServers(o.config, facts, want),
		Converged:   o.left == 0 && len(o.failed) == 0,
		Revision:    o.revision,
	}
	// The kernel lists addresses in an order that changes as they come and go.
	place := func(a Address) int {
		if i := slices.Index(plan.Addresses, a); i >= 0 {
			return i
		}
		return len(plan.Addresses)
	}
	o.have.Addresses = slices.SortedStableFunc(slices.Values(o.have.Addresses), func(a, b Address) int { return place(a) - place(b) })
	o.have.Foreign = slices.SortedStableFunc(slices.Values(o.have.Foreign), func(a, b ForeignAddress) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	for _, w := range want {
		i := slices.IndexFunc(o.have.Links, func(l Link) bool { return l.Index == w.Index })
		s.Links = append(s.Links, o.link(o.have.Links[i], !w.Loopback, w.DHCP4))
	}
	for _, l := range sortedLinks(o.have.Links) {
		if l.Physical() && !slices.ContainsFunc(want, func(w WantLink) bool { return w.Index == l.Index }) {
			s.Links = append(s.Links, o.link(l, false, false))
		}
	}
	s.Node = o.node
	s.Node = s.NodeAddresses(nil)
	for _, r := range o.have.Routes {
		s.Routes = append(s.Routes, RouteState{To: r.To, Via: r.Via, Link: r.Link, Metric: r.Metric})
	}
	s.Problems, s.Failed = append(o.problems(s, now), o.failed...), o.failed
	return s
}

func (o observation) link(l Link, managed, dhcp4 bool) LinkState {
	s := LinkState{
		Name: l.Name, Index: l.Index, MAC: l.MAC, MTU: l.MTU, Up: l.Up, Carrier: l.Carrier,
		Kind: l.Kind, Driver: l.Driver, Managed: managed,
	}
	lease := o.leases[l.Name]
	for _, a := range o.have.Addresses {
		if a.Index != l.Index {
			continue
		}
		origin := "static"
		if lease != nil && lease.Address == a.Prefix {
			origin = "dhcp"
		}
		s.Addresses = append(s.Addresses, AddressState{Prefix: a.Prefix, Origin: origin})
	}
	for _, f := range o.have.Foreign {
		if f.Index == l.Index {
			s.Addresses = append(s.Addresses, AddressState{f.Prefix, f.Origin, f.Unfit})
		}
	}
	if dhcp4 && l.Ethernet {
		c := o.clients[l.Index] // one that has not said anything yet is where each begins
		s.DHCP = &DHCPState{Phase: c.Phase.String(), Lease: c.Lease, Attempts: c.Attempt, Problem: c.Problem}
		if c.Lease != nil {
			s.DHCP.Expires = c.Lease.Expires()
		}
	}
	return s
}

func (o observation) problems(s State, now time.Time) []string {
	var out []string
	for _, name := range Missing(o.config, Facts{Links: o.have.Links}) {
		out = append(out, fmt.Sprintf("link %s: is configured but does not exist", name))
	}
	if len(o.config.Links) == 0 && !slices.ContainsFunc(o.have.Links, Link.Physical) {
		out = append(out, "no Ethernet link: the machine has no network card that this system knows")
	}
	for _, l := range s.Links {
		if l.Managed && l.Up && !l.Carrier {
			out = append(out, fmt.Sprintf("link %s: no carrier: is the cable connected?", l.Name))
			continue
		}
		c, ok := o.clients[l.Index]
		if !ok || c.Lease != nil || c.Attempt == 0 {
			continue
		}
		if waited := now.Sub(c.Since); waited >= patience {
			line := fmt.Sprintf("link %s: no DHCP lease after %v", l.Name, waited.Round(time.Second))
			if c.Problem != "" {
				line += ": " + c.Problem
			} else if c.Phase == dhcp.Selecting {
				line += ": no DHCP server answers"
			}
			out = append(out, line)
		}
	}
	return out
}
