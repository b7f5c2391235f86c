package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// Gateways returns the default routes in the main table that have a next hop: first the routes of
// this package, then the routes from router advertisements.
func (s State) Gateways() []RouteState {
	return slices.DeleteFunc(slices.Concat(s.Routes, s.RouterRoutes), func(r RouteState) bool { return !r.Via.IsValid() || r.To.Bits() != 0 || r.Table != 0 })
}

// GatewayProbes returns a probe for each gateway. A probe waits until the gateway answers
// (AwaitGateway).
func (s State) GatewayProbes() []func(context.Context) error {
	var out []func(context.Context) error
	for _, r := range s.Gateways() {
		out = append(out, func(ctx context.Context) error { return AwaitGateway(ctx, r) })
	}
	return out
}

// resolvedStates are the neighbor states in which the kernel knows the link-layer address
// (include/uapi/linux/neighbour.h).
const resolvedStates = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT | unix.NUD_NOARP

// pollInterval is the interval at which AwaitGateway reads the kernel's neighbor table.
const pollInterval = 100 * time.Millisecond

// AwaitGateway waits until a router answers on its link, to ARP or NDP. It fails if ctx is done
// before. It sends only empty datagrams, to the discard port of the router (RFC 863). The datagrams
// make the kernel resolve the link-layer address of the router.
func AwaitGateway(ctx context.Context, r RouteState) error {
	link, err := net.InterfaceByName(r.Link)
	if err != nil {
		return fmt.Errorf("gateway %s: %w", r.Via, err)
	}
	to := netip.AddrPortFrom(r.Via, 9)
	if r.Via.IsLinkLocalUnicast() {
		// The zone is the index of the link. A name would be unreliable: package net caches the
		// index of a name, and a replugged link has another index.
		to = netip.AddrPortFrom(r.Via.WithZone(strconv.Itoa(link.Index)), 9)
	}
	c, err := rtnetlink.Dial(nil)
	if err != nil {
		return fmt.Errorf("gateway %s: cannot read the neighbor table: %w", r.Via, err)
	}
	defer c.Close()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if s, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err == nil {
			_, _ = s.Write(nil) // the neighbor table shows the result
			s.Close()
		}
		known, err := c.Neigh.List()
		if err != nil {
			return fmt.Errorf("gateway %s: cannot read the neighbor table: %w", r.Via, err)
		}
		for _, n := range known {
			if n.Attributes == nil || n.Index != uint32(link.Index) || n.State&resolvedStates == 0 {
				continue
			}
			if a, ok := netip.AddrFromSlice(n.Attributes.Address); ok && a.Unmap() == r.Via {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("gateway %s on %s does not answer", r.Via, r.Link)
		}
	}
}
