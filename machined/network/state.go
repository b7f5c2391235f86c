package network

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp"
)

// State is the published state of the network. The controller never changes a published value.
type State struct {
	Hostname string `json:"hostname"`
	// lo, hardware and configured links; not the links of other components
	Links  []LinkState  `json:"links"`
	Routes []RouteState `json:"routes"` // routes of this package
	// routes that the kernel took from router advertisements
	RouterRoutes []RouteState `json:"routerRoutes,omitempty"`
	Servers      []netip.Addr `json:"servers"`     // resolvers in use
	Search       []string     `json:"search"`      // search domains in use
	TimeServers  []string     `json:"timeServers"` // time servers to use; addresses or names
	Node         []netip.Addr `json:"node"`        // the result of NodeAddresses(nil)
	// true if the kernel has the whole desired state
	Converged bool `json:"converged"`
	// revision of the configuration to which Converged refers
	Revision uint64   `json:"revision"`
	Problems []string `json:"problems"` // problems, one line each
	// failed operations with their errors, also listed in Problems
	Failed []string `json:"failed,omitempty"`
}

// LinkState is the state of a link.
type LinkState struct {
	Name    string `json:"name"`
	Index   int    `json:"index"`
	MAC     string `json:"mac,omitempty"`
	MTU     int    `json:"mtu"`
	Up      bool   `json:"up"`
	Carrier bool   `json:"carrier"`
	Kind    string `json:"kind,omitempty"`   // empty for hardware and lo
	Master  string `json:"master,omitempty"` // the bond, bridge or VRF to which it belongs
	Driver  string `json:"driver,omitempty"` // driver of the hardware
	// true if the package manages the link; see the package comment
	Managed   bool           `json:"managed"`
	Addresses []AddressState `json:"addresses"`
	DHCP      *DHCPState     `json:"dhcp,omitempty"`  // set if the link uses DHCPv4
	DHCP6     *DHCP6State    `json:"dhcp6,omitempty"` // set if the link uses DHCPv6
	// set if the link accepts router advertisements
	Advertised *AdvertisedState `json:"advertised,omitempty"`
}

// AddressState is an address of a link.
type AddressState struct {
	Prefix netip.Prefix `json:"prefix"`
	// "static", "dhcp", "prefix" (of a delegated prefix), "kernel" (loopback, link-local, router
	// advertisement) or "other"
	Origin string `json:"origin"`
	// Unfit is the reason why the address must not be published. It is empty for a usable address,
	// "duplicate" (another machine has the address), "tentative" (duplicate address detection is
	// running), "deprecated" (the address expires soon) or "temporary" (privacy extensions).
	Unfit string `json:"unfit,omitempty"`
}

// RouteState is a route.
type RouteState struct {
	To netip.Prefix `json:"to"`
	// the next hop; the zero Addr (empty in JSON) if the destination is on the link
	Via    netip.Addr `json:"via"`
	Link   string     `json:"link"`
	Metric uint32     `json:"metric"`
	Table  uint32     `json:"table,omitempty"` // 0: the main table
	Kind   string     `json:"kind,omitempty"`  // see Route
}

// DHCPState is the state of a DHCPv4 client.
type DHCPState struct {
	// phases of RFC 2131: init, selecting, requesting, rebooting, bound, renewing, rebinding
	Phase string      `json:"phase"`
	Lease *dhcp.Lease `json:"lease,omitempty"` // the active lease
	// expiry of the lease; zero if the lease never expires
	Expires  time.Time `json:"expires,omitzero"`
	Attempts int       `json:"attempts"`          // messages sent in this phase
	Problem  string    `json:"problem,omitempty"` // the last error
}

// inVRF reports whether a link is a VRF or belongs to a VRF. No service of the system listens in a
// VRF.
func (s State) inVRF(l LinkState) bool {
	return l.Kind == kindVRF || slices.ContainsFunc(s.Links, func(o LinkState) bool { return o.Name == l.Master && o.Kind == kindVRF })
}

// Direct reports whether the addresses of a link can serve the management API without another link.
// It returns false for a dummy and a tunnel, which are always up and need another link to be
// reached. It also returns false for a link in a VRF.
func (s State) Direct(l LinkState) bool {
	return !slices.Contains([]string{kindDummy, kindWireGuard}, l.Kind) && !s.inVRF(l)
}

// Addresses returns the addresses at which other machines reach this machine. These are the
// addresses of managed links outside VRFs, without loopback and link-local addresses. IPv4 comes
// before IPv6; within a family, the order is that of the links.
func (s State) Addresses() []netip.Addr {
	var v4, v6 []netip.Addr
	for _, l := range s.Links {
		if !l.Managed || s.inVRF(l) {
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

// NodeAddresses returns the addresses of the node, at most one per IP family, IPv4 first. It
// prefers, in this order: an address in the parameter named; an address from the configuration or a
// lease; the previous node address; an address that the kernel configured; any other address. The
// previous address is preferred because processes restart when the node address changes.
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
	for _, family := range []bool{true, false} { // true: IPv4, false: IPv6
		var best AddressState
		for _, l := range s.Links {
			for _, a := range l.Addresses {
				ip := a.Prefix.Addr()
				fits := l.Managed && l.Up && !s.inVRF(l) && ip.IsGlobalUnicast() && ip.Is4() == family && a.Unfit == ""
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

// observation is the input of describe.
type observation struct {
	config   Config
	revision uint64
	node     []netip.Addr // previous State.Node
	have     Have
	leases   map[string]*dhcp.Lease
	clients  map[int]dhcp.Status // by index of the link
	six      observation6
	failed   []string // failed operations
	left     int      // number of operations of the last round; 0 if it found nothing to do
}

// leaseGracePeriod is the time without a DHCP lease after which the State contains a problem.
const leaseGracePeriod = 3 * time.Second

// describe returns the State of an observation. The durations in the problems, such as the time
// without a lease, are computed up to now.
func describe(o observation, now time.Time) State {
	facts := Facts{Links: o.have.Links, Leases: o.leases, Leases6: o.six.leases, Routers: o.six.routers}
	plan := Plan(o.config, facts)
	want := plan.Links
	r := planResolver(o.config, facts, want)
	s := State{
		Hostname: o.have.Hostname, Servers: r.Servers, Search: r.Search,
		TimeServers: planTimeServers(o.config, facts, want),
		Converged:   o.left == 0 && len(o.failed) == 0,
		Revision:    o.revision,
	}
	// The State lists addresses in the order of the plan. The order in the kernel changes as
	// addresses are added and removed.
	position := func(a Address) int {
		if i := slices.Index(plan.Addresses, a); i >= 0 {
			return i
		}
		return len(plan.Addresses)
	}
	o.have.Addresses = slices.SortedStableFunc(slices.Values(o.have.Addresses), func(a, b Address) int { return position(a) - position(b) })
	o.have.Foreign = slices.SortedStableFunc(slices.Values(o.have.Foreign), func(a, b ForeignAddress) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	for _, w := range want {
		i := slices.IndexFunc(o.have.Links, func(l Link) bool { return l.Index == w.Index })
		if i >= 0 { // otherwise the link does not exist yet
			l := o.link(o.have.Links[i], plan, !w.Loopback, w.DHCP4)
			if !w.Loopback {
				o.describe6(&l, o.have.Links[i], w)
			}
			s.Links = append(s.Links, l)
		}
	}
	for _, l := range sortedLinks(o.have.Links) {
		if l.Physical() && !slices.ContainsFunc(want, func(w WantLink) bool { return w.Index == l.Index }) {
			s.Links = append(s.Links, o.link(l, plan, false, false))
		}
	}
	s.Node = o.node
	s.Node = s.NodeAddresses(nil)
	for _, r := range o.have.Routes {
		s.Routes = append(s.Routes, routeState(r))
	}
	for _, r := range sorted(o.have.Advertised) {
		s.RouterRoutes = append(s.RouterRoutes, routeState(r))
	}
	s.Problems, s.Failed = append(o.problems(s, facts, want, now), o.failed...), o.failed
	return s
}

func routeState(r Route) RouteState {
	return RouteState{To: r.To, Via: r.Via, Link: r.Link, Metric: r.Metric, Table: r.Table, Kind: r.Kind}
}

// link returns the state of a link with its addresses and its DHCPv4 client.
func (o observation) link(l Link, plan Want, managed, dhcp4 bool) LinkState {
	s := LinkState{
		Name: l.Name, Index: l.Index, MAC: l.MAC, MTU: l.MTU, Up: l.Up, Carrier: l.Carrier,
		Kind: l.Kind, Master: l.Master, Driver: l.Driver, Managed: managed,
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
		s.Addresses = append(s.Addresses, AddressState{Prefix: a.Prefix, Origin: cmp.Or(plan.Leased[a], origin), Unfit: o.have.Unfit[a]})
	}
	for _, f := range o.have.Foreign {
		if f.Index == l.Index {
			s.Addresses = append(s.Addresses, AddressState{f.Prefix, f.Origin, f.Unfit})
		}
	}
	if dhcp4 && l.Ethernet {
		c := o.clients[l.Index] // the zero value is the state of a new client
		s.DHCP = &DHCPState{Phase: c.Phase.String(), Lease: c.Lease, Attempts: c.Attempt, Problem: c.Problem}
		if c.Lease != nil {
			s.DHCP.Expires = c.Lease.Expires()
		}
	}
	return s
}

// problems returns the problems of a State, one line each. want contains the planned links.
func (o observation) problems(s State, f Facts, want []WantLink, now time.Time) []string {
	var out []string
	for _, name := range Missing(o.config, f) {
		out = append(out, fmt.Sprintf("link %s: is configured but does not exist", name))
	}
	out = append(out, ambiguous(o.config, f, want)...)
	out = append(out, misplaced(o.config, f)...)
	if len(o.config.Links) == 0 && !slices.ContainsFunc(o.have.Links, Link.Physical) {
		out = append(out, "no Ethernet link: the machine has no supported network interface")
	}
	for _, l := range s.Links {
		if l.Managed && l.Up && !l.Carrier {
			why := "is the cable connected?"
			below := func(m LinkState) bool { return m.Master == l.Name && m.Up && m.Carrier }
			switch {
			case l.Kind == kindBond && slices.ContainsFunc(s.Links, below):
				why = "its members have one, but none is in use: check LACP on the ports of the switch and full duplex (802.3ad), the ARP targets, or minLinks"
			case l.Kind == kindBond || l.Kind == kindBridge || l.Kind == kindVLAN:
				why = "no link below it has one"
			}
			out = append(out, fmt.Sprintf("link %s: no carrier: %s", l.Name, why))
			continue
		}
		c, ok := o.clients[l.Index]
		if !ok || c.Lease != nil || c.Attempt == 0 {
			continue
		}
		if waited := now.Sub(c.Since); waited >= leaseGracePeriod {
			line := fmt.Sprintf("link %s: no DHCP lease after %v", l.Name, waited.Round(time.Second))
			if c.Problem != "" {
				line += ": " + c.Problem
			} else if c.Phase == dhcp.Selecting {
				line += ": no DHCP server answers"
			}
			out = append(out, line)
		}
	}
	return append(out, o.problems6(s, f, want, now)...)
}
