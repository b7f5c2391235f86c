package podnetwork

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// KernelObject is one thing in the kernel that the mesh is made of.
type KernelObject interface {
	// Name says which it is: what the kernel has but once. A piece of the same name is changed into
	// another, not added.
	Name() string
	// String says all that there is to it, so that two pieces are the same if their strings are.
	String() string
}

// Link is the node's end of the tunnel.
type Link struct {
	Kind string // wireguard or vxlan
	Port int    // UDP
	MTU  int    // bytes
	Up   bool
	Key  wgtypes.Key // WireGuard's public key
	From netip.Addr  // VXLAN's own address
	MAC  string      // VXLAN's
}

// Name of a link holds what cannot be changed once it is made.
func (l Link) Name() string {
	if l.Kind == vxlan {
		return fmt.Sprintf("link %s vxlan port %d from %s as %s", Tunnel, l.Port, l.From, l.MAC)
	}
	return fmt.Sprintf("link %s %s", Tunnel, l.Kind)
}

func (l Link) String() string {
	text := fmt.Sprintf("%s mtu %d", l.Name(), l.MTU)
	if l.Kind == wireguard {
		text += fmt.Sprintf(" port %d key %s", l.Port, l.Key)
	}
	if !l.Up {
		text += " down"
	}
	return text
}

// Address is an address of the tunnel's link.
type Address struct{ IP netip.Addr }

// Name is all there is to an address.
func (a Address) Name() string   { return a.String() }
func (a Address) String() string { return fmt.Sprintf("address %s on %s", a.IP, Tunnel) }

// Peer is another node's end of a WireGuard tunnel.
type Peer struct {
	Key    wgtypes.Key // public
	At     netip.AddrPort
	Ranges []netip.Prefix // packets from these are taken from it, and to these are sent to it
	// Deferred: the last handshake with it has been lying in the future for long, because clocks went
	// back since (handshakes.stays). Such a one is made anew.
	Deferred bool
}

// Name of a peer is its key. The kernel keeps the time of a peer's last handshake as long as it has
// the peer, so one that is ahead is another one.
func (p Peer) Name() string {
	if p.Deferred {
		return "peer of a clock that went back " + p.Key.String()
	}
	return "peer " + p.Key.String()
}

func (p Peer) String() string {
	var words []string
	for _, r := range p.Ranges {
		words = append(words, r.String())
	}
	slices.Sort(words) // the kernel's order is its own
	return fmt.Sprintf("%s at %s for %s", p.Name(), p.At, strings.Join(words, ", "))
}

// FDBEntry is another node's end of a VXLAN tunnel.
type FDBEntry struct {
	MAC string
	At  netip.Addr
}

// Name of a station is its hardware address.
func (s FDBEntry) Name() string   { return "station " + s.MAC }
func (s FDBEntry) String() string { return fmt.Sprintf("%s at %s", s.Name(), s.At) }

// NeighborEntry says which station an address beyond a VXLAN tunnel belongs to; nobody is asked there.
type NeighborEntry struct {
	IP  netip.Addr
	MAC string
}

// Name of a neighbour is its address.
func (n NeighborEntry) Name() string   { return "neighbour " + n.IP.String() }
func (n NeighborEntry) String() string { return fmt.Sprintf("%s is station %s", n.Name(), n.MAC) }

// Route leads to pods of another node. One that leads nowhere refuses what has no better route.
type Route struct {
	To     netip.Prefix
	Via    netip.Addr // the next hop, if there is one
	From   netip.Addr // the sender, for programs of the machine
	Tunnel bool       // into the tunnel
}

// Name of a route is where it leads.
func (r Route) Name() string { return "route " + r.To.String() }

func (r Route) refuses() bool { return !r.Tunnel && !r.Via.IsValid() }

func (r Route) String() string {
	text := r.Name()
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	if r.Tunnel {
		text += " into " + Tunnel
	}
	if r.From.IsValid() {
		text += " from " + r.From.String()
	}
	if r.refuses() {
		text += " refused"
	}
	return text
}

// Diff says what of have has to go, in order, and what of want is not there yet, in order. A
// piece that is there beside the wanted one of its name goes: a network can have several routes.
func Diff(have, want []KernelObject) (gone, set []KernelObject) {
	names, texts := map[string]bool{}, map[string]bool{}
	// by text; names of which the wanted one is there
	wanted, met := map[string]bool{}, map[string]bool{}
	for _, p := range want {
		names[p.Name()], wanted[p.String()] = true, true
	}
	for _, p := range have {
		texts[p.String()] = true
		if wanted[p.String()] {
			met[p.Name()] = true
		}
	}
	for _, p := range have {
		if !names[p.Name()] || met[p.Name()] && !wanted[p.String()] {
			gone = append(gone, p)
		}
	}
	slices.Reverse(gone)
	for _, p := range want {
		if !texts[p.String()] {
			set = append(set, p)
		}
	}
	return gone, set
}
