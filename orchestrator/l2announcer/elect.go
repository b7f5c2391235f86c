package l2announcer

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
)

// Node is the part of a Node object that the election uses.
type Node struct {
	Name  string
	Ready bool
	// Excluded means that the Node has the label
	// node.kubernetes.io/exclude-from-external-load-balancers.
	Excluded  bool
	Addresses []netip.Addr // the internal IPs of the machine
	Cordoned  bool         // only package bgp uses Cordoned and BootID
	BootID    string       // the ID of the boot that the kubelet reported
	// Unheard means that this node does not hear the other node on the link. The entry of this node
	// itself is never Unheard.
	Unheard bool
}

// Service is the part of a Service object that the election uses.
type Service struct {
	Addresses []netip.Addr
	// Local means that the Service has externalTrafficPolicy Local: a node forwards its traffic
	// only to endpoints on the same node. Only nodes with an endpoint are then candidates.
	Local     bool
	Endpoints []string // names of the nodes with an endpoint; set only if Local is true
}

// Elect returns the addresses for which the node self answers, in ascending order. It is pure:
// nodes with the same input elect the same node for each address, so at most one node answers for
// an address. If two Services have the same address, which the allocator prevents, Elect uses the
// first Service.
//
// Elect computes a hash of the address and the name of each candidate, and the candidate with the
// highest hash wins (rendezvous hashing). When a node appears, only the addresses that it wins
// move. When a node disappears, only the addresses that it had move.
func Elect(self string, nodes []Node, services []Service) []netip.Addr {
	var won []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, s := range services {
		for _, a := range s.Addresses {
			if !seen[a] && winner(a, nodes, s) == self {
				won = append(won, a)
			}
			seen[a] = true
		}
	}
	slices.SortFunc(won, netip.Addr.Compare)
	return won
}

// winner returns the name of the node that answers for an address, or "" if no node is a candidate.
func winner(a netip.Addr, nodes []Node, s Service) string {
	var best string
	var highest [sha256.Size]byte
	for _, n := range nodes {
		if !n.Ready || n.Unheard || n.Excluded || s.Local && !slices.Contains(s.Endpoints, n.Name) {
			continue
		}
		hash := sha256.Sum256(append(a.AsSlice(), n.Name...))
		if best == "" || bytes.Compare(hash[:], highest[:]) > 0 {
			best, highest = n.Name, hash
		}
	}
	return best
}
