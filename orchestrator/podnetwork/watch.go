package podnetwork

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// mesh maintains the connections to the pods of other nodes. The connections stay when the process
// ends, and while the Nodes are unknown.
type mesh struct {
	spec nodespec.Spec
	dirs dirs.Dirs
	// writes the public key of this node to its Node
	publish func(ctx context.Context, key string) error
	kernel  kernel
	failed  bool // true: the last update has failed, at least in part
}

// maxShown is the largest number of problems in the status text.
const maxShown = 3

// update applies the Nodes to the kernel and returns a text for the status, or "". objects are all
// Nodes, own are the pod ranges of this node. Problems with other nodes are part of the text. They
// do not make this node unready.
func (m *mesh) update(ctx context.Context, own []netip.Prefix, objects []any) string {
	var nodes []Node
	var self *Node
	var problems []string
	for _, o := range objects {
		object, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		n, err := nodeOf(object)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		nodes = append(nodes, n)
		if n.Name == m.spec.Node.Name {
			self = &n
		}
	}
	if self == nil {
		// the state in the kernel stays, because the reason for the missing Node is unknown
		return ""
	}
	plan, err := m.plan(ctx, own, *self, nodes)
	if err == nil {
		m.kernel.log = func(text string) { klog.Infof("%s: %s", Name, text) }
		err = m.kernel.apply(plan.Pieces)
	}
	problems = append(problems, plan.Problems...)
	if m.failed = err != nil; m.failed {
		problems = append(problems, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return describe(m.spec.Network.Encapsulation, len(nodes)-1, plan.Nodes, problems)
}

// plan plans the mesh. With WireGuard, it creates and publishes the node's key when the cluster has
// a second node.
func (m *mesh) plan(ctx context.Context, own []netip.Prefix, self Node, nodes []Node) (Mesh, error) {
	mtu, err := underlayMTU(m.spec.Node.IPs[0])
	if err != nil {
		return Mesh{}, err
	}
	less, err := overhead(m.spec)
	if err != nil {
		return Mesh{}, err
	}
	view := Self{Ranges: own, MTU: mtu - less}
	var unpublished error
	if len(nodes) > 1 && m.spec.Network.Encapsulation == wireguard {
		if m.kernel.key, err = privateKey(m.dirs.PodNetwork, m.spec.Node.Name); err != nil {
			return Mesh{}, err
		}
		view.Key = m.kernel.key.PublicKey()
		if self.Key != view.Key.String() {
			unpublished = m.publish(ctx, view.Key.String())
		}
	}
	plan := NewMesh(m.spec, view, nodes)
	if unpublished != nil {
		plan.Problems = append(plan.Problems, fmt.Sprintf("the node's key is not published: %v", unpublished))
	}
	return plan, nil
}

// describe returns a status text about the other nodes. Without other nodes and problems it returns
// "".
func describe(encapsulation string, others, reached int, problems []string) string {
	text := ""
	if others > 0 {
		text = fmt.Sprintf("; %d of %d other nodes reached, encapsulation %s", reached, others, encapsulation)
	}
	more := len(problems) - maxShown
	for _, p := range problems[:min(len(problems), maxShown)] {
		text += "; " + p
	}
	if more > 0 {
		text += fmt.Sprintf("; and %d more problems", more)
	}
	return text
}
