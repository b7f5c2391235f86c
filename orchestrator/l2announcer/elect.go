package l2announcer

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
)

// Node is the relevant part of a Node object.
type Node struct {
	Name      string
	Ready     bool
	Excluded  bool         // by the label node.kubernetes.io/exclude-from-external-load-balancers
	Addresses []netip.Addr // of the machine
	Cordoned  bool         // for BGP only, as BootID
	BootID    string       // of the kernel that the kubelet reported
	Unheard   bool         // this node does not hear it on the link; never set for the node itself
}

// Service is the relevant part of a Service with addresses from a pool.
type Service struct {
	Addresses []netip.Addr
	// Local: its traffic must not continue to another node (externalTrafficPolicy), so only nodes
	// with an endpoint are candidates.
	Local     bool
	Endpoints []string // the nodes with a ready endpoint; only set with Local
}

// Elect returns the addresses for which a node answers, in order. It is pure: all nodes with the
// same input get the same result, and then at most one node answers for each address. If several
// Services have the same address, which the allocator prevents, the first one is decisive.
//
// The candidate with the highest hash of its name and the address wins (rendezvous hashing). So
// when a node appears or disappears, only the addresses move that it wins or had.
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

// winner returns the node that answers for an address, or "" without a candidate.
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
