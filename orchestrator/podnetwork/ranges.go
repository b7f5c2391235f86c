package podnetwork

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Ranges returns the valid pod ranges of the nodes, by the name of the node. NewMesh connects the
// same ranges. Nodes without a range and nodes with an invalid range are omitted.
func Ranges(spec nodespec.Spec, objects []*corev1.Node) map[string][]netip.Prefix {
	var all []Node
	for _, o := range objects {
		if n, err := nodeOf(o); err == nil {
			all = append(all, n)
		}
	}
	first := func(n Node) int { // the node's own Node comes before all other Nodes
		if n.Name == spec.Node.Name {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b Node) int {
		return cmp.Or(cmp.Compare(first(a), first(b)), a.Since.Compare(b.Since), strings.Compare(a.Name, b.Name))
	})
	out := map[string][]netip.Prefix{}
	var taken takenRanges
	for _, n := range all {
		if checkRanges(spec, n.Ranges, taken) == nil {
			out[n.Name] = n.Ranges
			taken.add(n.Ranges)
		}
	}
	return out
}

// TunnelOf returns the name of the link on which packets from the pods of other nodes arrive. It
// returns "" if there is no tunnel, and the packets arrive on any link.
func TunnelOf(spec nodespec.Spec) string {
	if spec.Network.Encapsulation == plain {
		return ""
	}
	return Tunnel
}
