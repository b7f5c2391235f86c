package podnetwork

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Ranges returns the valid pod ranges of the nodes by name: the same ranges that NewMesh connects.
// It omits nodes without a range and nodes with an invalid range.
func Ranges(spec nodespec.Spec, objects []*corev1.Node) map[string][]netip.Prefix {
	var all []Node
	for _, o := range objects {
		if n, err := nodeOf(o); err == nil {
			all = append(all, n)
		}
	}
	first := func(n Node) int { // a node trusts its own Node first
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

// TunnelOf returns the link of packets from other nodes' pods, or "" if they arrive like all other
// packets.
func TunnelOf(spec nodespec.Spec) string {
	if spec.Network.Encapsulation == plain {
		return ""
	}
	return Tunnel
}
