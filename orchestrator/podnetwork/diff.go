package podnetwork

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// KernelObject is an object in the kernel that belongs to the mesh, the connections to other nodes'
// pods.
type KernelObject interface {
	// Name identifies the object in the kernel. Diff treats two objects with the same name and
	// different strings as a change.
	Name() string
	// String describes all properties of the object. Two objects are equal if their strings are
	// equal.
	String() string
}

// Link is the node's end of the tunnel.
type Link struct {
	Kind string // wireguard or vxlan
	Port int    // UDP port
	MTU  int    // in bytes
	Up   bool
	Key  wgtypes.Key // the public key of WireGuard
	From netip.Addr  // the address that VXLAN uses on this node
	MAC  string      // the MAC of a VXLAN link
}

// Name contains the kind and, for VXLAN, the properties that cannot change after the creation of
// the link.
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

// Address is an address of the link of the tunnel.
type Address struct{ IP netip.Addr }

// Name is the same as String.
func (a Address) Name() string   { return a.String() }
func (a Address) String() string { return fmt.Sprintf("address %s on %s", a.IP, Tunnel) }

// Peer is the end of a WireGuard tunnel on another node.
type Peer struct {
	Key wgtypes.Key // the public key
	At  netip.AddrPort
	// The tunnel accepts packets from the peer only with a source in these ranges, and sends
	// packets to these ranges to the peer.
	Ranges []netip.Prefix
	// Deferred is true if the last handshake has been in the future for a long time, because a
	// clock was set back (handshakes.stuck). Such a peer is deleted and created again.
	Deferred bool
}

// Name contains the key of the peer. A deferred peer has another name, so Diff removes it and sets
// a new peer. The kernel stores the time of the last handshake until the peer is removed.
func (p Peer) Name() string {
	if p.Deferred {
		return "deferred peer " + p.Key.String()
	}
	return "peer " + p.Key.String()
}

func (p Peer) String() string {
	var words []string
	for _, r := range p.Ranges {
		words = append(words, r.String())
	}
	slices.Sort(words) // the kernel lists ranges in its own order
	return fmt.Sprintf("%s at %s for %s", p.Name(), p.At, strings.Join(words, ", "))
}

// FDBEntry is the end of a VXLAN tunnel on another node: an entry of the forwarding database.
type FDBEntry struct {
	MAC string
	At  netip.Addr
}

// Name contains the hardware address of the entry.
func (s FDBEntry) Name() string   { return "fdb " + s.MAC }
func (s FDBEntry) String() string { return fmt.Sprintf("%s at %s", s.Name(), s.At) }

// NeighborEntry maps an address behind a VXLAN tunnel to the MAC of an FDB entry. It replaces ARP
// and NDP, which the tunnel does not have.
type NeighborEntry struct {
	IP  netip.Addr
	MAC string
}

// Name contains the address of the entry.
func (n NeighborEntry) Name() string   { return "neighbor " + n.IP.String() }
func (n NeighborEntry) String() string { return fmt.Sprintf("%s is %s", n.Name(), n.MAC) }

// Route is a route to the pods of another node. If the route has no next hop and does not lead into
// the tunnel, it makes its network unreachable for packets without a better route.
type Route struct {
	To     netip.Prefix
	Via    netip.Addr // the next hop; invalid if there is none
	From   netip.Addr // the source address of packets from processes of the machine
	Tunnel bool       // true: the route leads into the tunnel
}

// Name contains the destination of the route.
func (r Route) Name() string { return "route " + r.To.String() }

// refuses reports whether the route makes its network unreachable.
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
		text += " unreachable"
	}
	return text
}

// Diff returns the objects to remove, in the reverse order of have, and the objects to set, in the
// order of want. If a wanted object exists, Diff also removes the other objects of the same name,
// because a network can have several routes.
func Diff(have, want []KernelObject) (gone, set []KernelObject) {
	names, texts := map[string]bool{}, map[string]bool{}
	// wanted has the texts of the wanted objects. met has the names of those wanted objects that
	// exist.
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
