package nodelabels

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component that sets taints.
const Name = "node-taints"

// Component describes the component that sets taints, without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// Run sets the taints that the configurations of Nodes specify, until ctx is done.
func Run(ctx context.Context, env component.Env) error {
	own, acting, err := nodecontrollers.ControllerClient(ctx, env, Name, bootstrap.NodeTaintsAccount)
	if own == nil {
		return err
	}
	c, err := newController(env.Nodes, acting)
	if err != nil {
		return err
	}
	return c.run(ctx, env.AnnounceReady(Name))
}

// controller sets the taints of all Nodes.
type controller struct {
	watched *component.Nodes
	nodes   cache.SharedIndexInformer // the informer of watched
	api     kubernetes.Interface
	changed cell.Signal
}

// newController returns a controller that changes Nodes with the client acting.
func newController(watched *component.Nodes, acting kubernetes.Interface) (*controller, error) {
	nodes, err := watched.Informer()
	if err != nil {
		return nil, err
	}
	return &controller{watched: watched, nodes: nodes, api: acting, changed: cell.NewSignal()}, nil
}

func (c *controller) run(ctx context.Context, tell func(detail string)) error {
	return component.Reconciler{
		Changed: c.changed, RetryInterval: retryInterval, Pass: c.pass, Report: tell,
		Factories: []component.Factory{c.watched}, Watched: []component.Watched{{Informer: c.nodes, IgnoreDeletes: true}},
	}.Run(ctx)
}

// pass applies TaintStep to all Nodes once, and returns the status text and the first error. An
// error for one Node does not block the other Nodes.
func (c *controller) pass(ctx context.Context) (string, error) {
	all := component.Objects[*corev1.Node](c.nodes)
	slices.SortFunc(all, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	set := 0
	var first error
	for _, n := range all {
		have := readNode(n)
		step, err := TaintStep(have)
		if err != nil {
			err = fmt.Errorf("Node %s: %w", n.Name, err)
		} else if err = write(ctx, c.api, n, step); err == nil {
			taints, _ := parse[nodespec.Taint](step.apply(have).Set)
			set += len(taints)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return fmt.Sprintf("%d taints of the configurations of %d nodes", set, len(all)), first
}
