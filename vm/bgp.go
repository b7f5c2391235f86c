package vm

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/orlop-os/orlop/pkg/bgp"
	"github.com/orlop-os/orlop/pkg/cell"
)

// routerHoldTime is the hold time of the router. The machines have lower hold times, and a session
// uses the lower of the two values.
const routerHoldTime = 90 * time.Second

// BGPRouter is the router of a network with BGP. The gateway accepts sessions from all machines,
// and sends its own connections over the routes that the machines announce. If several machines
// announce an address, the gateway distributes its connections among these machines (ECMP).
type BGPRouter struct {
	network *Network
	asn     uint32
	dialing sync.Mutex // held while a connection starts and needs its route in the stack

	mu       sync.Mutex
	sessions map[net.Conn]map[netip.Prefix]netip.Addr // next hops by session and route
	seen     []netip.Prefix
	turn     int // selects the next hop of the next connection
}

// StartBGP starts the router with the AS number asn on port 179 of the gateway. The router ends
// when the network is closed.
func StartBGP(n *Network, asn uint32) (*BGPRouter, error) {
	l, err := n.Listen(179)
	if err != nil {
		return nil, err
	}
	r := &BGPRouter{network: n, asn: asn, sessions: map[net.Conn]map[netip.Prefix]netip.Addr{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.serve(ctx, conn) })
		}
	})
	n.mu.Lock()
	n.closers = append(n.closers, func() { cancel(); l.Close(); running.Wait() })
	n.mu.Unlock()
	n.control.bgp.Store(r)
	return r, nil
}

// serve runs the BGP session of a machine. The routes of the session end with the session.
func (r *BGPRouter) serve(ctx context.Context, conn net.Conn) {
	c := bgp.Config{ASN: r.asn, RouterID: r.network.gateway.addr, HoldTime: routerHoldTime, Receives: true}
	_ = bgp.Serve(ctx, conn, c, cell.New([]netip.Prefix(nil)).Watch(), bgp.Hooks{
		Clock: r.network.clock, Update: func(_ bgp.Open, u bgp.Update) { r.update(conn, u) },
	}) // the machine logs why the session ended
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, conn)
}

func (r *BGPRouter) update(from net.Conn, u bgp.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	routes := r.sessions[from]
	if routes == nil {
		routes = map[netip.Prefix]netip.Addr{}
		r.sessions[from] = routes
	}
	for _, p := range u.Withdrawn {
		delete(routes, p)
	}
	for _, p := range u.Announced {
		routes[p] = u.NextHop
		if !slices.Contains(r.seen, p) {
			r.seen = append(r.seen, p)
		}
	}
}

// Hops returns the addresses of the machines that announce a route to an address, in ascending
// order.
func (r *BGPRouter) Hops(a netip.Addr) []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hopsLocked(a)
}

func (r *BGPRouter) hopsLocked(a netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, routes := range r.sessions {
		for p, hop := range routes {
			if p.Contains(a) && !slices.Contains(all, hop) {
				all = append(all, hop)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// Seen returns all routes that machines have announced since the start.
func (r *BGPRouter) Seen() []netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// dial connects to address by a route for its IP address to. If there are several next hops,
// successive calls use different next hops.
func (r *BGPRouter) dial(ctx context.Context, network, address string, to netip.Addr) (net.Conn, error) {
	r.dialing.Lock()
	defer r.dialing.Unlock()
	r.mu.Lock()
	hop := netip.Addr{}
	if hops := r.hopsLocked(to); len(hops) > 0 {
		hop = hops[r.turn%len(hops)]
		r.turn++
	}
	r.mu.Unlock()
	r.network.gateway.setRoute(to, hop)
	return r.network.gateway.DialContext(ctx, network, address)
}

// routed returns the IP address in address ("IP:port"), and reports whether a machine has announced
// a route to it. A nil router has no routes.
func (r *BGPRouter) routed(address string) (to netip.Addr, ok bool) {
	at, err := netip.ParseAddrPort(address)
	if r == nil || err != nil {
		return netip.Addr{}, false
	}
	return at.Addr(), slices.ContainsFunc(r.Seen(), func(p netip.Prefix) bool { return p.Contains(at.Addr()) })
}

// setRoute replaces the route of the stack to an address; an invalid hop only removes the route.
// Existing connections keep their route.
func (h *Host) setRoute(to, hop netip.Addr) {
	subnet := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(to.AsSlice()), PrefixLen: to.BitLen()}.Subnet()
	routes := slices.DeleteFunc(h.stack.GetRouteTable(), func(r tcpip.Route) bool { return r.Destination == subnet })
	if hop.IsValid() {
		// The stack uses the first route that matches.
		routes = slices.Insert(routes, 0, tcpip.Route{Destination: subnet, Gateway: tcpip.AddrFromSlice(hop.AsSlice()), NIC: nic})
	}
	h.stack.SetRouteTable(routes)
}
