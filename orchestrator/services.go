package main

import (
	"context"

	"github.com/orlop-os/orlop/orchestrator/addons"
	"github.com/orlop-os/orlop/orchestrator/apivip"
	"github.com/orlop-os/orlop/orchestrator/balancer"
	"github.com/orlop-os/orlop/orchestrator/bgp"
	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/coredns"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/drain"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/extensions"
	"github.com/orlop-os/orlop/orchestrator/imagepolicy"
	"github.com/orlop-os/orlop/orchestrator/kms"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/l2announcer"
	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/orchestrator/loadbalancer"
	"github.com/orlop-os/orlop/orchestrator/localvolumes"
	"github.com/orlop-os/orlop/orchestrator/machineobject"
	"github.com/orlop-os/orlop/orchestrator/machines"
	"github.com/orlop-os/orlop/orchestrator/machines/overview"
	"github.com/orlop-os/orlop/orchestrator/metrics"
	"github.com/orlop-os/orlop/orchestrator/netpolicy"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/orchestrator/nodelabels"
	"github.com/orlop-os/orlop/orchestrator/offlineapi"
	"github.com/orlop-os/orlop/orchestrator/podcertificates"
	"github.com/orlop-os/orlop/orchestrator/podnetwork"
	"github.com/orlop-os/orlop/orchestrator/portguard"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/orchestrator/skew"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// runFunc is the Run function of a component.
type runFunc = func(context.Context, component.Announce) error

// entry is a row of the table of components.
type entry struct {
	on       func(nodespec.Spec) bool // the nodes with the component; nil: all
	describe func(nodespec.Spec, dirs.Dirs) []component.Component
	run      func(*wiring, component.Component) runFunc
}

// table lists the components of all processes. The components of a process stop in the reverse
// order of the table.
var table = []entry{
	{controlPlane, one(etcd.Component), (*wiring).runEtcd},
	{controlPlane, bySpec(kms.Components), (*wiring).runKMS},
	{controlPlane, one(kubeapiserver.Component), (*wiring).runAPIServer},
	{controlPlane, named(component.API, bootstrap.Name), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return bootstrap.Run(ctx, env, w.apiReady.WaitServing, w.apiserver.Loopback)
	})},
	{controlPlane, named(component.API, extensions.Name), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return extensions.Run(ctx, env, w.apiserver, w.rejections)
	})},
	{controlPlane, named(component.API, skew.Name), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return skew.Run(ctx, env, w.apiserver.Loopback)
	})},
	{controlPlane, named(component.API, etcd.LevelName), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return etcd.RunLevel(ctx, env, w.apiReady.WaitServing)
	})},
	{controlPlane, named(component.Controllers, level.ControllersName), alone(level.Watch)},
	{leaderelection.NeedsElection, one(leaderelection.Component), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return w.controllers.elector.Run(ctx, env)
	})},
	{controlPlane, one(nodecontrollers.IPAMComponent), alone(nodecontrollers.RunIPAM)},
	{controlPlane, one(nodecontrollers.NamespacesComponent), alone(nodecontrollers.RunNamespaces)},
	{controlPlane, one(controllermanager.Component), (*wiring).runControllerManager},
	{controlPlane, one(scheduler.Component), (*wiring).runScheduler},
	{controlPlane, one(metrics.Component), alone(metrics.Run)},
	{controlPlane, one(addons.Component), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return addons.Run(ctx, env, w.controllers.addons)
	})},
	{controlPlane, one(nodelabels.Component), alone(nodelabels.Run)},
	{controlPlane, one(loadbalancer.Component), alone(loadbalancer.Run)},
	{controlPlane, one(machines.Component), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return machines.Run(ctx, env, machines.Sources{Parts: func() ([]overview.Part, error) { return w.controllers.parts(w.spec, w.dirs) }, Addons: w.addonStates})
	})},
	{controlPlane, localvolumes.Controllers, alone(localvolumes.Run)},
	{controlPlane, podcertificates.Components, alone(podcertificates.Run)},
	{nil, bySpec(balancer.Components), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return balancer.Run(ctx, env, w.offlineAPI)
	})},
	{nil, offlineapi.Components, func(w *wiring, _ component.Component) runFunc { return w.offlineAPI.Run }},
	{nil, bySpec(imagepolicy.Components), alone(imagepolicy.Run)},
	{nil, one(kubelet.Component), (*wiring).runKubelet},
	{nil, one(kubeproxy.Component), (*wiring).runKubeProxy},
	{nil, one(coredns.Component), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return coredns.Run(ctx, env, w.agent.Addresses)
	})},
	{nil, named(component.Node, drain.Name), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return drain.Run(ctx, env, w.agent.Registered)
	})},
	{nil, one(nodelabels.NodeComponent), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return nodelabels.RunNode(ctx, env, w.nodeLabels)
	})},
	{nil, one(machineobject.Component), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return machineobject.Run(ctx, env, func(ctx context.Context) (bool, error) { return etcd.Leads(ctx, w.dirs) })
	})},
	{nil, one(netpolicy.Component), alone(netpolicy.Run)},
	{nil, one(portguard.Component), with(func(ctx context.Context, w *wiring, env component.Env) error {
		return portguard.Run(ctx, env, func() { close(w.portGuard) })
	})},
	{nil, one(podnetwork.Component), func(w *wiring, _ component.Component) runFunc { return w.agent.Run }},
	{nil, named(component.Node, podnetwork.NodeName), func(w *wiring, _ component.Component) runFunc { return w.agent.RunNode }},
	{nil, localvolumes.Nodes, alone(localvolumes.RunNode)},
	{nil, l2announcer.Components, alone(l2announcer.Run)},
	{nil, bySpec(apivip.Components), alone(apivip.Run)},
	{nil, bgp.Components, alone(bgp.Run)},
}

// Services returns the components of every process of the node, with all flags and files. It is
// pure, and starts nothing. testdata/*.golden show the result for some specs.
func Services(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	var all []component.Component
	for _, e := range table {
		all = append(all, e.components(spec, dirs)...)
	}
	return all
}

// components returns the components of a row on a node.
func (e entry) components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if e.on != nil && !e.on(spec) {
		return nil
	}
	return e.describe(spec, dirs)
}

func controlPlane(spec nodespec.Spec) bool { return spec.Node.ControlPlane }

// one returns a describe function for a component that exists once on each node of its row.
func one(describe func(nodespec.Spec, dirs.Dirs) component.Component) func(nodespec.Spec, dirs.Dirs) []component.Component {
	return func(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
		return []component.Component{describe(spec, dirs)}
	}
}

// named returns a describe function for a component without flags and files.
func named(process, name string) func(nodespec.Spec, dirs.Dirs) []component.Component {
	return func(nodespec.Spec, dirs.Dirs) []component.Component {
		return []component.Component{{Process: process, Name: name}}
	}
}

// bySpec returns a describe function for components that depend on the spec alone, because they
// have no files.
func bySpec(describe func(nodespec.Spec) []component.Component) func(nodespec.Spec, dirs.Dirs) []component.Component {
	return func(spec nodespec.Spec, _ dirs.Dirs) []component.Component { return describe(spec) }
}

// alone returns a run function for a component that needs only its environment.
func alone(run func(context.Context, component.Env) error) func(*wiring, component.Component) runFunc {
	return with(func(ctx context.Context, _ *wiring, env component.Env) error { return run(ctx, env) })
}

// The function with returns a run function for a component that also needs the shared state of its
// process.
func with(run func(context.Context, *wiring, component.Env) error) func(*wiring, component.Component) runFunc {
	return func(w *wiring, _ component.Component) runFunc {
		return func(ctx context.Context, announce component.Announce) error { return run(ctx, w, w.env(announce)) }
	}
}
