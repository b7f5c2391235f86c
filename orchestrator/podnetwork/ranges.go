package podnetwork

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Ranges returns the pod ranges of the nodes, by name, as far as they are believed: the same that
// NewMesh connects. A node that has none yet, or none to be believed, is not there.
func Ranges(spec nodespec.Spec, objects []*corev1.Node) map[string][]netip.Prefix {
	var all []Node
	for _, o := range objects {
		if n, err := nodeOf(o); err == nil {
			all = append(all, n)
		}
	}
	first := func(n Node) int { // a node believes its own
		if n.Name == spec.NodeName {
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
		if believable(spec, n.Ranges, taken) == nil {
			out[n.Name] = n.Ranges
			taken.add(n.Ranges)
		}
	}
	return out
}

// TunnelOf returns the link that packets of other nodes' pods come by, empty if they come as all
// others do.
func TunnelOf(spec nodespec.Spec) string {
	if spec.Encapsulation == plain {
		return ""
	}
	return Tunnel
}
