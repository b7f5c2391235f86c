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

// KeyAnnotation is the annotation of a Node with the node's WireGuard public key in base64.
const KeyAnnotation = "network.orlop.dev/wireguard-public-key"

// The encapsulations of packets between nodes, as in nodespec.Spec.
const (
	wireguard = "wireguard"
	vxlan     = "vxlan"
	plain     = "none"
)

// overhead returns the number of bytes that the tunnel adds to each packet. WireGuard adds 32 bytes
// and a UDP header of 8. VXLAN adds 8 bytes, a UDP header of 8 and an Ethernet header of 14. The IP
// header has 20 bytes, or 40 if the node has an IPv6 address, which the tunnel may use.
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

// Node contains the fields of a Node object that the mesh needs.
type Node struct {
	Name      string
	Since     time.Time // the time of the registration
	Addresses []netip.Addr
	Ranges    []netip.Prefix // the pod ranges of the node
	Key       string         // the published public key, or ""
}

// nodeOf reads a Node object. It omits invalid addresses, and returns an error for an invalid pod
// range.
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

// Self describes the node for which NewMesh makes the plan.
type Self struct {
	Ranges []netip.Prefix // the pod ranges of the node
	MTU    int            // the MTU of the tunnel and of pods, in bytes
	Key    wgtypes.Key    // the public key; only for WireGuard
}

// Mesh is the plan of a node's connections to the pods of other nodes.
type Mesh struct {
	Pieces   []KernelObject // the wanted objects in the kernel, in the order of their creation
	Nodes    int            // the number of connected nodes
	Problems []string       // why nodes are not connected, one line for each of them
}

// NewMesh plans how the node reaches the pods of other nodes. nodes may contain the node itself,
// and their order has no effect.
//
// Each node can have only its own pod ranges and its own key. If two nodes claim the same range or
// key, it belongs to the node that registered first. A pod range must have the form that the
// control plane assigns (checkRanges).
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
			taken.add(n.Ranges) // the ranges belong to the node even if it is not reachable
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
		// Without these routes, packets to pods of nodes that are not connected would leave through
		// the machine's gateway, unencrypted.
		for _, r := range spec.Network.PodCIDRs {
			m.Pieces = append(m.Pieces, Route{To: r.Masked()})
		}
		if len(hosts) > 0 {
			m.Pieces = append(m.Pieces, link(spec, self))
			// The kernel masquerades packets into the tunnel with an address of the tunnel's link.
			// Answers to this address are routed back.
			for _, g := range gateways(self.Ranges) {
				m.Pieces = append(m.Pieces, Address{g})
			}
		}
	}
	m.Pieces = append(m.Pieces, slices.Concat(peers, routes)...)
	return m
}

// reach plans the objects for a node, without its routes. The function to returns the next hop for
// a pod range of the node; for WireGuard, to is nil. reach returns an error if the node cannot be
// connected.
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
		// A VXLAN tunnel uses only the address family of the node's first address.
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

// takenRanges are the pod ranges of the nodes so far. All ranges of a family have the same size, so
// two ranges overlap only if they are equal. A lookup in a map therefore suffices, even for
// thousands of nodes.
type takenRanges struct {
	all  map[netip.Prefix]bool // with masked addresses
	bits map[bool]int          // the prefix lengths: true for IPv6, false for IPv4
}

func (t *takenRanges) add(ranges []netip.Prefix) {
	if t.all == nil {
		t.all, t.bits = map[netip.Prefix]bool{}, map[bool]int{}
	}
	for _, r := range ranges {
		t.all[r.Masked()], t.bits[r.Addr().Is6()] = true, r.Bits()
	}
}

// checkRanges returns an error for pod ranges that the control plane would not assign, and for
// ranges that another node has.
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

// publicKey parses a key. It returns an error if the key is invalid or is one of the keys of other
// nodes (taken).
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

// The function link returns this node's end of the tunnel.
func link(spec nodespec.Spec, self Self) Link {
	l := Link{Kind: spec.Network.Encapsulation, MTU: self.MTU, Up: true}
	if l.Kind == vxlan {
		l.From, l.MAC, l.Port = spec.Node.IPs[0], stationOf(spec.Node.Name), paths.PortVXLAN
	} else {
		l.Key, l.Port = self.Key, paths.PortWireGuard
	}
	return l
}

// stationOf returns the hardware address of a node's end of a VXLAN tunnel. It is a locally
// administered address (IEEE 802, the second bit of the first byte), derived from the name of the
// node. So nodes need not exchange it.
func stationOf(name string) string {
	sum := sha256.Sum256([]byte("orlop vxlan station\n" + name))
	sum[0] = sum[0]&^1 | 2
	return net.HardwareAddr(sum[:6]).String()
}

// gateways returns the addresses of the bridges for pod ranges: the first address of each range.
func gateways(ranges []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, r := range ranges {
		out = append(out, r.Masked().Addr().Next())
	}
	return out
}

// common returns the first address in the list theirs of a family that the list ours has, too. It
// tries the families in the order of the list ours, and returns the zero Addr if there is no common
// family.
func common(ours, theirs []netip.Addr) netip.Addr {
	for _, a := range ours {
		if b := ofFamily(theirs, a.Is6()); b.IsValid() {
			return b
		}
	}
	return netip.Addr{}
}

// ofFamily returns the first address of a family, or the zero Addr.
func ofFamily(all []netip.Addr, v6 bool) netip.Addr {
	for _, a := range all {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}
