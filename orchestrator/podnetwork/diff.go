package podnetwork

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// KernelObject is an object in the kernel that belongs to the mesh.
type KernelObject interface {
	// Name identifies the object in the kernel. An object with the same name is changed, not added.
	Name() string
	// String contains all properties: two objects are equal if their strings are.
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

// Name contains the properties of a link that cannot change after its creation.
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

// Name is the same as String.
func (a Address) Name() string   { return a.String() }
func (a Address) String() string { return fmt.Sprintf("address %s on %s", a.IP, Tunnel) }

// Peer is another node's end of a WireGuard tunnel.
type Peer struct {
	Key wgtypes.Key // public
	At  netip.AddrPort
	// the tunnel accepts packets from these ranges from it, and sends packets to them to it
	Ranges []netip.Prefix
	// Deferred: its last handshake has been in the future for long, because clocks went back since
	// (handshakes.stuck). The peer is recreated.
	Deferred bool
}

// Name of a peer contains its key. The kernel stores the time of a peer's last handshake as long as
// the peer exists, so a deferred peer has a different name.
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
	slices.Sort(words) // the kernel has an order of its own
	return fmt.Sprintf("%s at %s for %s", p.Name(), p.At, strings.Join(words, ", "))
}

// FDBEntry is another node's end of a VXLAN tunnel.
type FDBEntry struct {
	MAC string
	At  netip.Addr
}

// Name of an FDB entry contains its hardware address.
func (s FDBEntry) Name() string   { return "fdb " + s.MAC }
func (s FDBEntry) String() string { return fmt.Sprintf("%s at %s", s.Name(), s.At) }

// NeighborEntry maps an address behind a VXLAN tunnel to the MAC of an FDB entry; the tunnel has no
// ARP or NDP.
type NeighborEntry struct {
	IP  netip.Addr
	MAC string
}

// Name of a neighbor entry contains its address.
func (n NeighborEntry) Name() string   { return "neighbor " + n.IP.String() }
func (n NeighborEntry) String() string { return fmt.Sprintf("%s is %s", n.Name(), n.MAC) }

// Route is a route to the pods of another node. A route without a target rejects packets for which
// no better route exists.
type Route struct {
	To     netip.Prefix
	Via    netip.Addr // the next hop, if any
	From   netip.Addr // the source address for processes of the machine
	Tunnel bool       // into the tunnel
}

// Name of a route contains its destination.
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
		text += " unreachable"
	}
	return text
}

// Diff returns the objects of have to remove and the objects of want to set, both in order. It also
// removes an object beside the wanted object of the same name: a network can have several routes.
func Diff(have, want []KernelObject) (gone, set []KernelObject) {
	names, texts := map[string]bool{}, map[string]bool{}
	// by text; names of existing wanted objects
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
