package l2announcer

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
)

// Node is what counts of a Node.
type Node struct {
	Name      string
	Ready     bool
	Excluded  bool         // by the label node.kubernetes.io/exclude-from-external-load-balancers
	Addresses []netip.Addr // of the machine
	Unheard   bool         // on the link, as this node hears it; never itself
}

// Service is what counts of a Service that has addresses from a pool.
type Service struct {
	Addresses []netip.Addr
	// Local: its traffic must not go on to another node (externalTrafficPolicy), so that only nodes
	// with an endpoint come into question.
	Local     bool
	Endpoints []string // the nodes that have a ready endpoint of it; of use only with Local
}

// Elect returns the addresses for which a node answers, in order. Pure: every node that has the
// same view comes to the same result, and then each address is one node's at most. Of Services that
// name the same address, which the allocator does not make, the first counts.
//
// Of the nodes that come into question the one with the highest hash of its name and the address
// wins (rendezvous hashing), so that when a node comes or goes, only addresses move that it wins or
// had.
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

// winner is the node that answers for an address; empty when none may.
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
