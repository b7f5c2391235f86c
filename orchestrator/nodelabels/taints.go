package nodelabels

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
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
	return newController(own, acting).run(ctx, env.AnnounceReady(Name))
}

// controller sets the taints of all Nodes.
type controller struct {
	factory informers.SharedInformerFactory
	nodes   cache.SharedIndexInformer
	api     kubernetes.Interface
	changed cell.Signal
}

// newController returns a controller that watches with an identity and makes changes with another.
func newController(own, acting kubernetes.Interface) *controller {
	factory := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(trim))
	return &controller{factory: factory, nodes: factory.Core().V1().Nodes().Informer(), api: acting, changed: cell.NewSignal()}
}

func (c *controller) run(ctx context.Context, tell func(detail string)) error {
	return component.Reconciler{
		Changed: c.changed, RetryInterval: retryInterval, Pass: c.pass, Report: tell,
		Factories: []component.Factory{c.factory}, Watched: []component.Watched{{Informer: c.nodes, IgnoreDeletes: true}},
	}.Run(ctx)
}

// pass checks all Nodes once. An error for a Node is reported and does not block the others.
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
