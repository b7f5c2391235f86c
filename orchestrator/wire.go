package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/orchestrator/addons"
	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/apivip"
	"github.com/orlop-os/orlop/orchestrator/balancer"
	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/coredns"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/drain"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/extensions"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/l2announcer"
	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/orchestrator/loadbalancer"
	"github.com/orlop-os/orlop/orchestrator/localvolumes"
	"github.com/orlop-os/orlop/orchestrator/metrics"
	"github.com/orlop-os/orlop/orchestrator/netpolicy"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/orchestrator/nodelabels"
	"github.com/orlop-os/orlop/orchestrator/offlineapi"
	"github.com/orlop-os/orlop/orchestrator/podcertificates"
	"github.com/orlop-os/orlop/orchestrator/podnetwork"
	"github.com/orlop-os/orlop/orchestrator/portguard"
	"github.com/orlop-os/orlop/orchestrator/process"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// wire returns the components of one process ready to run, and how its memory is managed. After
// something came from down, the node's pods are ended, and podsEnded is called.
func wire(ctx context.Context, name string, spec nodespec.Spec, dirs dirs.Dirs, down <-chan os.Signal, podsEnded func()) ([]component.Component, process.HeapLimiter, error) {
	fail := func(err error) ([]component.Component, process.HeapLimiter, error) {
		return nil, process.HeapLimiter{}, err
	}
	folder, memory, err := resources(name, dirs)
	if err != nil {
		return fail(err)
	}
	var own []component.Component
	for _, c := range Services(spec, dirs) {
		if c.Process == name {
			own = append(own, c)
		}
	}
	if len(own) == 0 {
		return fail(fmt.Errorf("nothing to run: %s is not part of the control plane", spec.NodeName))
	}
	w := wiring{spec: spec, dirs: dirs, server: kubeconfig.Local(), down: down, podsEnded: podsEnded}
	authorities := filepath.Join(folder, nodespec.CA)
	if name == component.Node {
		if w.marks, err = nodelabels.Read(dirs); err != nil {
			return fail(err)
		}
		w.server, authorities = kubeconfig.Node(spec), kubeconfig.Authorities(spec, dirs)
		if len(offlineapi.Components(spec, dirs)) > 0 {
			if w.standIn, err = offlineapi.New(spec, dirs); err != nil {
				return fail(err)
			}
		}
	}
	if w.gate, err = apiready.New(w.server.URL, w.server.Name, authorities); err != nil {
		return fail(err)
	}
	go w.gate.Run(ctx)
	w.agent = podnetwork.New(spec, dirs, w.gate)
	if name == component.Controllers && leaderelection.NeedsElection(spec) {
		w.lead = leaderelection.New(spec, dirs)
	}
	for i := range own {
		if own[i].Run == nil {
			w.attach(&own[i])
		}
		// Each API server asks the metrics of its own machine while they are there.
		if w.lead != nil && own[i].Name != leaderelection.Name && own[i].Name != metrics.Name {
			own[i].Run = w.lead.WhenLeading(own[i].Name, own[i].Run)
		}
	}
	return own, memory, nil
}

// resources returns a process's folder and how it uses memory: its first collection comes when it
// uses about one and a half times what it keeps.
func resources(name string, dirs dirs.Dirs) (string, process.HeapLimiter, error) {
	switch name {
	case component.API:
		return dirs.API, process.HeapLimiter{First: 192 << 20}, nil
	case component.Controllers:
		return dirs.Controllers, process.HeapLimiter{First: 64 << 20}, nil
	case component.Node:
		return dirs.Node, process.HeapLimiter{First: 80 << 20}, nil
	}
	return "", process.HeapLimiter{}, fmt.Errorf("%q is no process of the orchestrator: api, controllers or node", name)
}

// wiring is what the components of one process share.
type wiring struct {
	spec      nodespec.Spec
	dirs      dirs.Dirs
	gate      *apiready.Waiter
	server    kubeconfig.Server
	etcd      <-chan struct{} // closed when etcd answers
	apiserver *kubeapiserver.Server
	refusals  *extensions.RejectionLog // of the API server
	agent     *podnetwork.Agent
	lead      *leaderelection.Elector // nil where nobody is elected
	marks     nodespec.NodeLabels     // with which the kubelet makes a new Node
	standIn   *offlineapi.Server      // nil where there is no balancer
	down      <-chan os.Signal        // the machine goes down
	podsEnded func()
}

func (w *wiring) etcdReady(ctx context.Context) error {
	select {
	case <-w.etcd:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// attach gives a described component its Run function.
func (w *wiring) attach(c *component.Component) {
	args := c.Args
	switch c.Name {
	case etcd.Name:
		ready := make(chan struct{})
		w.etcd = ready
		c.Run = func(ctx context.Context, announce component.Announce) error {
			waits := func(why string) { announce(etcd.Name, false, why) }
			return etcd.Run(ctx, c.Files[0].Path, w.spec, w.dirs, waits, func() {
				close(ready)
				announce(etcd.Name, true, "serving on "+w.dirs.EtcdSocket())
			})
		}
	case kubeapiserver.Name:
		w.refusals = new(extensions.RejectionLog)
		w.apiserver = kubeapiserver.New(args, filepath.Join(w.dirs.API, nodespec.Revoked), metrics.Addresses(w.spec), w.etcdReady, bootstrap.Rights)
		w.apiserver.Revoked = w.refusals.Note
		check := health.Check{URL: w.server.URL + "/readyz", CAFile: filepath.Join(w.dirs.API, nodespec.CA), Name: w.server.Name}
		c.Run = watched(c.Name, check, w.apiserver.Run)
	case bootstrap.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return bootstrap.Run(ctx, w.spec, w.gate, w.apiserver.Loopback, announce)
		}
	case extensions.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return extensions.Run(ctx, w.gate, w.apiserver.Loopback, w.refusals, announce)
		}
	case leaderelection.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return w.lead.Run(ctx, w.gate.WaitRBAC, announce)
		}
	case nodecontrollers.IPAM:
		c.Run = w.allowed(nodecontrollers.RunIPAM)
	case nodecontrollers.Namespaces:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return nodecontrollers.RunNamespaces(ctx, w.dirs, w.gate.WaitRBAC, announce)
		}
	case controllermanager.Name:
		c.Run = apart(c.Name, w.loopback(controllermanager.Port))
	case scheduler.Name:
		c.Run = watched(c.Name, w.loopback(scheduler.Port), func(ctx context.Context) error {
			return scheduler.Run(ctx, args, w.gate.WaitRBAC)
		})
	case balancer.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return balancer.Run(ctx, w.spec, w.dirs, w.standIn, announce)
		}
	case offlineapi.Name:
		c.Run = w.standIn.Run
	case metrics.Name:
		c.Run = w.allowed(metrics.Run)
	case addons.Name:
		c.Run = w.allowed(addons.Run)
	case kubelet.Name:
		c.Run = watched(c.Name, health.Check{URL: plain(kubelet.HealthPort)}, func(ctx context.Context) error {
			standIn := w.standIn != nil && w.standIn.Address() != ""
			return kubelet.Run(ctx, args, w.marks, w.gate, standIn, filepath.Join(w.dirs.Node, nodespec.Revoked), filepath.Join(w.dirs.Node, "logind.sock"), w.down, w.podsEnded)
		})
	case kubeproxy.Name:
		c.Run = watched(c.Name, health.Check{URL: plain(kubeproxy.HealthPort)}, func(ctx context.Context) error {
			return kubeproxy.Run(ctx, args, w.gate.WaitRBAC)
		})
	case coredns.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return coredns.Run(ctx, w.spec, w.dirs, w.agent.Addresses, announce)
		}
	case drain.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return drain.Run(ctx, w.spec, w.dirs, w.agent.Registered, announce)
		}
	case nodelabels.Name:
		c.Run = w.allowed(nodelabels.Run)
	case nodelabels.NodeName:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return nodelabels.RunNode(ctx, w.spec, w.dirs, w.marks, w.gate.WaitRBAC, announce)
		}
	case netpolicy.Name:
		c.Run = w.allowed(netpolicy.Run)
	case portguard.Name:
		c.Run = w.allowed(portguard.Run)
	case loadbalancer.Name:
		c.Run = w.allowed(loadbalancer.Run)
	case podcertificates.Name:
		c.Run = w.allowed(podcertificates.Run)
	case localvolumes.Name:
		c.Run = w.allowed(localvolumes.Run)
	case localvolumes.NodeName:
		c.Run = w.allowed(localvolumes.RunNode)
	case l2announcer.Name:
		c.Run = w.allowed(l2announcer.Run)
	case apivip.Name:
		c.Run = func(ctx context.Context, announce component.Announce) error {
			return apivip.Run(ctx, w.spec, w.dirs, announce)
		}
	case podnetwork.Name:
		c.Run = w.agent.Run
	case podnetwork.NodeName:
		c.Run = w.agent.RunNode
	}
}

// forgiven is how long a component that is started again by itself may keep its process from being
// ready: machined ends a process that does not get ready, and its other components work.
const forgiven = time.Minute

// apart runs a component as a process of its own, with a watch of its health, and starts it again
// when it ends.
func apart(name string, check health.Check) func(context.Context, component.Announce) error {
	return func(ctx context.Context, announce component.Announce) error {
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("cannot find the program: %w", err)
		}
		began := time.Now()
		once := watched(name, check, func(ctx context.Context) error { return process.Child(ctx, exec.Command(program, name)) })
		return process.RestartLoop(ctx,
			func(ctx context.Context) error { return once(ctx, announce) },
			func(why string) { announce(name, time.Since(began) > forgiven, nodespec.ProblemPrefix+why) })
	}
}

// allowed runs what waits for the rights to do what it does.
func (w *wiring) allowed(
	run func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) error,
) func(context.Context, component.Announce) error {
	return func(ctx context.Context, announce component.Announce) error {
		return run(ctx, w.spec, w.dirs, w.gate.WaitRBAC, announce)
	}
}

// plain is the health address of a part of the node, without TLS and on loopback.
func plain(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/healthz", port) }

// loopback is the health address of a controller on this machine.
func (w *wiring) loopback(port int) health.Check {
	return health.Check{
		URL:    fmt.Sprintf("https://127.0.0.1:%d/healthz", port),
		CAFile: filepath.Join(w.dirs.Controllers, nodespec.CA),
		Name:   "localhost",
	}
}

// watched runs a component with a watch of its health beside it.
func watched(name string, check health.Check, run func(context.Context) error) func(context.Context, component.Announce) error {
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
