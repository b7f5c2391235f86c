package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/addons"
	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/extensions"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/kms"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/orchestrator/machines/overview"
	"github.com/orlop-os/orlop/orchestrator/metrics"
	"github.com/orlop-os/orlop/orchestrator/nodelabels"
	"github.com/orlop-os/orlop/orchestrator/offlineapi"
	"github.com/orlop-os/orlop/orchestrator/podnetwork"
	"github.com/orlop-os/orlop/orchestrator/process"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// wire returns the components of a process with their Run functions, and the memory settings of the
// process. After a signal on powerDown, the kubelet ends the node's pods, and then podsEnded is
// called.
func wire(ctx context.Context, name string, spec nodespec.Spec, dirs dirs.Dirs, powerDown <-chan os.Signal, podsEnded func()) ([]component.Component, process.HeapLimiter, error) {
	fail := func(err error) ([]component.Component, process.HeapLimiter, error) {
		return nil, process.HeapLimiter{}, err
	}
	dir, memory, err := resources(name, dirs)
	if err != nil {
		return fail(err)
	}
	w := &wiring{nodes: component.NewNodes(ctx, component.NodesClient(component.KubeconfigPath(dir, nodeWatchers[name]))), dir: dir, spec: spec, dirs: dirs, server: kubeconfig.Local(), end: podEnd{powerDown, podsEnded}, portGuard: make(chan struct{}), controllers: controllers{addons: cell.New([]addons.Summary(nil)), parts: parts}}
	if !slices.ContainsFunc(Services(spec, dirs), func(c component.Component) bool { return c.Process == name }) {
		return fail(fmt.Errorf("nothing to run: %s is not part of the control plane", spec.Node.Name))
	}
	authorities := filepath.Join(dir, nodespec.CA)
	if name == component.Node {
		if w.nodeLabels, err = nodelabels.Read(dirs); err != nil {
			return fail(err)
		}
		w.server, authorities = kubeconfig.Node(spec), kubeconfig.Authorities(spec, dirs)
		if len(offlineapi.Components(spec, dirs)) > 0 {
			if w.offlineAPI, err = offlineapi.New(spec, dirs); err != nil {
				return fail(err)
			}
		}
	}
	if w.apiReady, err = apiready.New(w.server.URL, w.server.Name, authorities); err != nil {
		return fail(err)
	}
	go w.apiReady.Run(ctx)
	w.agent = podnetwork.New(spec, dirs, w.apiReady, w.nodes)
	if name == component.Controllers && leaderelection.NeedsElection(spec) {
		w.controllers.elector = leaderelection.New()
	}
	return w.attach(name), memory, nil
}

// resources returns the directory of a process and its memory settings. First is the heap size at
// the first garbage collection: about one and a half times the permanent memory of the process.
func resources(name string, dirs dirs.Dirs) (string, process.HeapLimiter, error) {
	switch name {
	case component.API:
		return dirs.API, process.HeapLimiter{First: 192 << 20}, nil
	case component.Controllers:
		return dirs.Controllers, process.HeapLimiter{First: 64 << 20}, nil
	case component.Node:
		return dirs.Node, process.HeapLimiter{First: 80 << 20}, nil
	}
	return "", process.HeapLimiter{}, fmt.Errorf("%q is not a process of the orchestrator: api, controllers or node", name)
}

// nodeWatchers maps a process to the component with whose identity the process watches the Nodes.
// The other components that use this informer have the same identity, or one with fewer rights on
// Nodes.
var nodeWatchers = map[string]string{component.Controllers: nodelabels.Name, component.Node: podnetwork.Client}

// wiring is the state that the components of a process share.
type wiring struct {
	nodes       *component.Nodes
	dir         string // of the process
	spec        nodespec.Spec
	dirs        dirs.Dirs
	apiReady    *apiready.Waiter
	server      kubeconfig.Server
	needs       needs // of the API server
	apiserver   *kubeapiserver.Server
	rejections  *extensions.RejectionLog // of the API server
	agent       *podnetwork.Agent
	controllers controllers
	nodeLabels  nodespec.NodeLabels // with which the kubelet creates a new Node
	offlineAPI  *offlineapi.Server  // nil without a balancer
	portGuard   chan struct{}       // closed when the port guard is active
	end         podEnd
}

// needs are the components that the API server waits for. Each channel is closed when its component
// can be used; a nil channel means that the API server does not need the component.
type needs struct{ etcd, kms <-chan struct{} }

// controllers is the state of the process "controllers".
type controllers struct {
	elector *leaderelection.Elector // nil without leader election
	addons  *cell.Cell[[]addons.Summary]
	// parts is set to the function parts. The table of components cannot refer to the function
	// directly, because the function reads the table, and Go rejects initialization cycles.
	parts func(nodespec.Spec, dirs.Dirs) ([]overview.Part, error)
}

// podEnd is the end of the pods of a node before the machine shuts down.
type podEnd struct {
	powerDown <-chan os.Signal // the machine shuts down
	podsEnded func()
}

// attach returns the components of the process with their Run functions.
func (w *wiring) attach(process string) []component.Component {
	var all []component.Component
	for _, e := range table {
		for _, c := range e.components(w.spec, w.dirs) {
			if c.Process != process {
				continue
			}
			if c.Run == nil {
				c.Run = e.run(w, c)
			}
			if w.controllers.elector != nil && needsLead(c) {
				c.Run = w.controllers.elector.WhenLeading(c.Name, c.Run)
			}
			all = append(all, c)
		}
	}
	return all
}

// needsLead reports whether a component of the process "controllers" works on the leading machine
// only. Two components work on every machine: metrics, because each API server gets metrics from
// its own machine, and the watch of the level, because every process restarts at a new level.
func needsLead(c component.Component) bool {
	return c.Process == component.Controllers && c.Name != leaderelection.Name && c.Name != metrics.Name && c.Name != level.ControllersName
}

// env returns the environment of a component.
func (w *wiring) env(announce component.Announce) component.Env {
	return component.Env{Dir: w.dir, Spec: w.spec, Dirs: w.dirs, Rights: w.apiReady.WaitRBAC, Announce: announce, Nodes: w.nodes}
}

func (w *wiring) runEtcd(c component.Component) runFunc {
	ready := make(chan struct{})
	w.needs.etcd = ready
	return func(ctx context.Context, announce component.Announce) error {
		waits := func(why string) { announce(etcd.Name, false, why) }
		return etcd.Run(ctx, c.Files[0].Path, w.spec, w.dirs, waits, func() {
			close(ready)
			announce(etcd.Name, true, "serving on "+w.dirs.EtcdSocket())
		})
	}
}

// runKMS serves the plugin of the key manager. The API server starts only after the plugin serves,
// because an API server that does not find the plugin tries again only after ten seconds.
func (w *wiring) runKMS(component.Component) runFunc {
	serving := make(chan struct{})
	w.needs.kms = serving
	return func(ctx context.Context, announce component.Announce) error {
		return kms.Run(ctx, w.env(announce), func() { close(serving) })
	}
}

// storageReady waits until the API server can read and write its data.
func (w *wiring) storageReady(ctx context.Context) error {
	if w.needs.kms != nil {
		if err := component.Wait(ctx, w.needs.kms); err != nil {
			return err
		}
	}
	return component.Wait(ctx, w.needs.etcd)
}

func (w *wiring) runAPIServer(c component.Component) runFunc {
	w.rejections = new(extensions.RejectionLog)
	w.apiserver = kubeapiserver.New(c.Args, filepath.Join(w.dirs.API, nodespec.Revoked), metrics.Addresses(w.spec), w.storageReady, bootstrap.Rights)
	w.apiserver.Revoked = w.rejections.Note
	check := health.Check{URL: w.server.URL + "/readyz", CAFile: filepath.Join(w.dirs.API, nodespec.CA), Name: w.server.Name}
	return withHealthCheck(c.Name, check, w.apiserver.Run)
}

func (w *wiring) runControllerManager(c component.Component) runFunc {
	return asChild(c.Name, w.loopback(controllermanager.Port))
}

func (w *wiring) runScheduler(c component.Component) runFunc {
	return withHealthCheck(c.Name, w.loopback(scheduler.Port), func(ctx context.Context) error {
		return scheduler.Run(ctx, c.Args, w.apiReady.WaitRBAC)
	})
}

// runKubelet starts the kubelet, and with it the pods, when the port guard keeps pods from the
// ports of the machines.
func (w *wiring) runKubelet(c component.Component) runFunc {
	return withHealthCheck(c.Name, health.Check{URL: plainHealthURL(kubelet.HealthPort)}, func(ctx context.Context) error {
		select {
		case <-w.portGuard:
		case <-w.end.powerDown: // no kubelet has started, so there are no pods to end
			w.end.podsEnded()
			<-ctx.Done()
			return nil
		case <-ctx.Done():
			return nil
		}
		offlineAPI := w.offlineAPI != nil && w.offlineAPI.Address() != ""
		return kubelet.Run(ctx, c.Args, w.nodeLabels, w.apiReady, offlineAPI, filepath.Join(w.dirs.Node, nodespec.Revoked), filepath.Join(w.dirs.Node, "logind.sock"), w.end.powerDown, w.end.podsEnded)
	})
}

func (w *wiring) runKubeProxy(c component.Component) runFunc {
	return withHealthCheck(c.Name, health.Check{URL: plainHealthURL(kubeproxy.HealthPort)}, func(ctx context.Context) error {
		return kubeproxy.Run(ctx, c.Args, w.apiReady.WaitRBAC)
	})
}

// restartGrace is the time for which a component that RestartLoop restarts may keep its process
// unready. After that the process reports itself ready, because machined would end an unready
// process, with all its components that work.
const restartGrace = time.Minute

// asChild runs a component as a separate process with a health check, and restarts it when it ends.
// The child is the same program: machined starts this process by its absolute path, so os.Args[0]
// is that path.
func asChild(name string, check health.Check) func(context.Context, component.Announce) error {
	return func(ctx context.Context, announce component.Announce) error {
		began := time.Now()
		once := withHealthCheck(name, check, func(ctx context.Context) error { return process.Child(ctx, exec.Command(os.Args[0], name)) })
		return process.RestartLoop(ctx,
			func(ctx context.Context) error { return once(ctx, announce) },
			func(why string) { announce(name, time.Since(began) > restartGrace, nodespec.ProblemPrefix+why) })
	}
}

// plainHealthURL is the health address of a component of the node, on loopback and without TLS.
func plainHealthURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/healthz", port) }

// loopback is the health check of a controller on this machine.
func (w *wiring) loopback(port int) health.Check {
	return health.Check{
		URL:    fmt.Sprintf("https://127.0.0.1:%d/healthz", port),
		CAFile: filepath.Join(w.dirs.Controllers, nodespec.CA),
		Name:   "localhost",
	}
}

// withHealthCheck runs a component together with its health check.
func withHealthCheck(name string, check health.Check, run func(context.Context) error) func(context.Context, component.Announce) error {
	check.Component = name
	return func(ctx context.Context, announce component.Announce) error {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		failed := make(chan error, 1)
		go func() { failed <- check.Watch(watching, announce) }()
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		select {
		case err := <-ended:
			return err
		case err := <-failed:
			if err != nil {
				return err
			}
			return <-ended
		}
	}
}
