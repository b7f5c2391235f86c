package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// Gateways are the routers that a machine sends to what is not on its own links.
func (s State) Gateways() []RouteState {
	return slices.DeleteFunc(slices.Clone(s.Routes), func(r RouteState) bool { return !r.Via.IsValid() || r.To.Bits() != 0 })
}

// resolved are the states of a neighbour whose link-layer address the kernel knows
// (include/uapi/linux/neighbour.h).
const resolved = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT | unix.NUD_NOARP

// lookEvery is how often the kernel is asked whether a neighbour has answered.
const lookEvery = 100 * time.Millisecond

// AwaitGateway waits until a router answers on its link, to ARP or to neighbour discovery. Nothing
// is sent to it but the question and an empty datagram to its discard port (RFC 863), which makes
// the kernel ask.
func AwaitGateway(ctx context.Context, r RouteState) error {
	link, err := net.InterfaceByName(r.Link)
	if err != nil {
		return fmt.Errorf("gateway %s: %w", r.Via, err)
	}
	to := netip.AddrPortFrom(r.Via, 9)
	if r.Via.IsLinkLocalUnicast() {
		to = netip.AddrPortFrom(r.Via.WithZone(r.Link), 9)
	}
	c, err := rtnetlink.Dial(nil)
	if err != nil {
		return fmt.Errorf("gateway %s: cannot ask the kernel: %w", r.Via, err)
	}
	defer c.Close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if s, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err == nil {
			_, _ = s.Write(nil) // whether it could be sent shows below
			s.Close()
		}
		known, err := c.Neigh.List()
		if err != nil {
			return fmt.Errorf("gateway %s: cannot ask the kernel: %w", r.Via, err)
		}
		for _, n := range known {
			if n.Attributes == nil || n.Index != uint32(link.Index) || n.State&resolved == 0 {
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
