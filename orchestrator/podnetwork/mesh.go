package podnetwork

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Tunnel is the name of the link to the pods of other nodes.
const Tunnel = "mesh0"

// KeyAnnotation is the annotation of a node's WireGuard public key, in base64.
const KeyAnnotation = "network.orlop.dev/wireguard-public-key"

// The encapsulations, as in nodespec.Spec.
const (
	wireguard = "wireguard"
	vxlan     = "vxlan"
	plain     = "none"
)

// overhead returns the bytes that the tunnel adds to each packet: its own header with a UDP header
// (32 and 16; VXLAN also carries an Ethernet header of 14), and an IP header of 20, or of 40 if the
// node has an IPv6 address, which its tunnel may use.
func overhead(spec nodespec.Spec) (int, error) {
	header := 20
	if slices.ContainsFunc(spec.Node.IPs, netip.Addr.Is6) {
		header = 40
	}
	switch spec.Network.Encapsulation {
	case wireguard:
		return header + 8 + 32, nil
	case vxlan:
		return header + 8 + 8 + 14, nil
	case plain:
		return 0, nil
	}
	return 0, fmt.Errorf("encapsulation %q: is not known; use wireguard, vxlan or none", spec.Network.Encapsulation)
}

// Node is the relevant part of a Node object.
type Node struct {
	Name      string
	Since     time.Time // time of the registration
	Addresses []netip.Addr
	Ranges    []netip.Prefix // of its pods
	Key       string         // its published public key, or empty
}

// nodeOf reads a Node object. It omits invalid addresses and returns an error for invalid ranges.
func nodeOf(object *corev1.Node) (Node, error) {
	n := Node{Name: object.Name, Since: object.CreationTimestamp.Time, Key: object.Annotations[KeyAnnotation]}
	for _, a := range object.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.IsGlobalUnicast() && ip.Zone() == "" {
			n.Addresses = append(n.Addresses, ip.Unmap())
		}
	}
	var err error
	n.Ranges, err = podRanges(object)
	return n, err
}

// Self is the node for which the mesh is planned.
type Self struct {
	Ranges []netip.Prefix // of its pods
	MTU    int            // of the tunnel and of pods, bytes
	Key    wgtypes.Key    // public; used by WireGuard only
}

// Mesh is the plan of a node's connections to the pods of the others.
type Mesh struct {
	Pieces   []KernelObject // of the kernel, in order of their creation
	Nodes    int            // number of connected nodes
	Problems []string       // reasons for unconnected nodes, at most one line for each
}

// NewMesh plans how the node reaches the pods of the others. nodes may be in any order, and may
// contain the node itself.
//
// A node may claim only its own addresses and its own key: if two nodes claim the same range or
// key, it belongs to the older registration. A range must have a form that the control plane
// assigns.
func NewMesh(spec nodespec.Spec, self Self, nodes []Node) Mesh {
	var m Mesh
	var hosts []Node
	for _, n := range nodes {
		if n.Name != spec.Node.Name {
			hosts = append(hosts, n)
		}
	}
	slices.SortFunc(hosts, func(a, b Node) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Name, b.Name))
	})
	var peers []KernelObject
	var routes []KernelObject
	var taken takenRanges
	taken.add(self.Ranges)
	keys := []wgtypes.Key{self.Key}
	for _, n := range hosts {
		err := checkRanges(spec, n.Ranges, taken)
		if err == nil {
			taken.add(n.Ranges) // the ranges belong to the node even if it is unreachable
		}
		var to func(netip.Prefix) netip.Addr
		var parts []KernelObject
		if err == nil {
			to, parts, err = reach(spec, n, keys)
		}
		if err != nil {
			m.Problems = append(m.Problems, fmt.Sprintf("%s: %v", n.Name, err))
			continue
		}
		for _, p := range parts {
			if peer, ok := p.(Peer); ok {
				keys = append(keys, peer.Key)
			}
		}
		peers = append(peers, parts...)
		for _, r := range n.Ranges {
			route := Route{To: r.Masked(), From: ofFamily(gateways(self.Ranges), r.Addr().Is6()), Tunnel: spec.Network.Encapsulation != plain}
			if spec.Network.Encapsulation != wireguard {
				route.Via = to(r)
			}
			routes = append(routes, route)
		}
		m.Nodes++
	}
	if spec.Network.Encapsulation != plain {
		// Packets to pods of unconnected nodes would otherwise leave by the machine's gateway,
		// unencrypted.
		for _, r := range spec.Network.PodCIDRs {
			m.Pieces = append(m.Pieces, Route{To: r.Masked()})
		}
		if len(hosts) > 0 {
			m.Pieces = append(m.Pieces, link(spec, self))
			// Packets that the kernel masquerades into the tunnel get an address of this link as
			// their source, to which answers are routed back.
			for _, g := range gateways(self.Ranges) {
				m.Pieces = append(m.Pieces, Address{g})
			}
		}
	}
	m.Pieces = append(m.Pieces, slices.Concat(peers, routes)...)
	return m
}

// reach plans the objects for a node besides its routes, and returns the next hops of its ranges.
func reach(spec nodespec.Spec, n Node, keys []wgtypes.Key) (to func(netip.Prefix) netip.Addr, parts []KernelObject, err error) {
	switch spec.Network.Encapsulation {
	case wireguard:
		at := common(spec.Node.IPs, n.Addresses)
		key, err := publicKey(n.Key, keys)
		if err != nil {
			return nil, nil, err
		}
		if !at.IsValid() {
			return nil, nil, errors.New("has no address of a family that this node has")
		}
		peer := Peer{Key: key, At: netip.AddrPortFrom(at, paths.PortWireGuard)}
		for _, r := range n.Ranges {
			peer.Ranges = append(peer.Ranges, r.Masked())
		}
		return nil, []KernelObject{peer}, nil
	case vxlan:
		// A tunnel uses a single address family: the cluster's first.
		at := ofFamily(n.Addresses, spec.Node.IPs[0].Is6())
		if !at.IsValid() {
			return nil, nil, fmt.Errorf("has no address of the family of %s", spec.Node.IPs[0])
		}
		station := stationOf(n.Name)
		parts = append(parts, FDBEntry{MAC: station, At: at})
		for _, g := range gateways(n.Ranges) {
			parts = append(parts, NeighborEntry{IP: g, MAC: station})
		}
		return func(r netip.Prefix) netip.Addr { return ofFamily(gateways(n.Ranges), r.Addr().Is6()) }, parts, nil
	}
	for _, r := range n.Ranges {
		if !ofFamily(n.Addresses, r.Addr().Is6()).IsValid() {
			return nil, nil, fmt.Errorf("has no address of the family of its pod range %s", r)
		}
	}
	return func(r netip.Prefix) netip.Addr { return ofFamily(n.Addresses, r.Addr().Is6()) }, nil, nil
}

// takenRanges are pod ranges of nodes. All ranges of a family have the same size, so two ranges
// overlap only if they are equal, and one pass over thousands of nodes suffices.
type takenRanges struct {
	all  map[netip.Prefix]bool // masked
	bits map[bool]int          // of IPv6, and of IPv4
}

func (t *takenRanges) add(ranges []netip.Prefix) {
	if t.all == nil {
		t.all, t.bits = map[netip.Prefix]bool{}, map[bool]int{}
	}
	for _, r := range ranges {
		t.all[r.Masked()], t.bits[r.Addr().Is6()] = true, r.Bits()
	}
}

// checkRanges checks that ranges have a form that the control plane assigns, and belong to no other
// node.
func checkRanges(spec nodespec.Spec, ranges []netip.Prefix, taken takenRanges) error {
	if len(ranges) == 0 {
		return errors.New("has no pod range yet")
	}
	for _, r := range ranges {
		within := func(c netip.Prefix) bool { return c.Contains(r.Addr()) && c.Bits() <= r.Bits() }
		if !slices.ContainsFunc(spec.Network.PodCIDRs, within) {
			return fmt.Errorf("pod range %s is not in the cluster's", r)
		}
		if bits, known := taken.bits[r.Addr().Is6()]; known && bits != r.Bits() {
			return fmt.Errorf("pod range %s is not of the size of others", r)
		}
		if taken.all[r.Masked()] {
			return fmt.Errorf("pod range %s is another node's", r)
		}
	}
	return nil
}

// publicKey parses a key and checks that it belongs to no other node.
func publicKey(text string, taken []wgtypes.Key) (wgtypes.Key, error) {
	if text == "" {
		return wgtypes.Key{}, errors.New("has published no key yet")
	}
	key, err := wgtypes.ParseKey(text)
	if err != nil || key == (wgtypes.Key{}) {
		return wgtypes.Key{}, fmt.Errorf("annotation %s is no WireGuard key", KeyAnnotation)
	}
	if slices.Contains(taken, key) {
		return wgtypes.Key{}, errors.New("has published another node's key")
	}
	return key, nil
}

// link returns the node's own end of the tunnel.
func link(spec nodespec.Spec, self Self) Link {
	l := Link{Kind: spec.Network.Encapsulation, MTU: self.MTU, Up: true}
	if l.Kind == vxlan {
		l.From, l.MAC, l.Port = spec.Node.IPs[0], stationOf(spec.Node.Name), paths.PortVXLAN
	} else {
		l.Key, l.Port = self.Key, paths.PortWireGuard
	}
	return l
}

// stationOf returns the hardware address of a node's end of a VXLAN tunnel: a locally administered
// address (IEEE 802, the second bit of the first byte), derived from the node's name, so that nodes
// need not exchange it.
func stationOf(name string) string {
	sum := sha256.Sum256([]byte("orlop vxlan station\n" + name))
	sum[0] = sum[0]&^1 | 2
	return net.HardwareAddr(sum[:6]).String()
}

// gateways returns the addresses of the bridges of ranges: the first of each.
func gateways(ranges []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, r := range ranges {
		out = append(out, r.Masked().Addr().Next())
	}
	return out
}

// common returns the first address of theirs with a family of ours, in our order of families.
func common(ours, theirs []netip.Addr) netip.Addr {
	for _, a := range ours {
		if b := ofFamily(theirs, a.Is6()); b.IsValid() {
			return b
		}
	}
	return netip.Addr{}
}

// ofFamily returns the first address of a family, or an invalid address.
func ofFamily(all []netip.Addr, v6 bool) netip.Addr {
	for _, a := range all {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}
