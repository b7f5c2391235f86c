// Package leaderelection runs the controllers of a single control-plane machine at a time. The
// controllers of another machine can start only after the lease of the leader has expired or the
// leader has released it.
//
// All components of process "controllers" share one lease, because they start and stop together.
// The holder of the Lease object is the leader. The only control-plane machine of a cluster does
// not run this component, because it has no competitor. After a power cut, an election would delay
// its controllers until the lease of the ended process has expired.
//
// Each process uses only the API server of its own machine. It does not use the balancer, which the
// components of the node use. A machine therefore loses the lease when its own API server fails,
// and a machine with a working API server gets the lease (docs/decisions/0032-balancer.md).
package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "leader-election"

// leaseName is the name of the Lease in namespace kube-system. The default roles of Kubernetes give
// the identity of kube-controller-manager the right to this Lease. kube-controller-manager itself
// does not use the Lease here.
const leaseName = "kube-controller-manager"

// The lease expires leaseDuration after its last renewal, and then another machine becomes the
// leader. A leader that could not renew the lease for renewDeadline stops. Its last request and the
// two requests that release the lease take at most requestTimeout each, so they end before the
// lease expires. The times are about twice the defaults of Kubernetes, so that a slow API server
// does not make leaders stop: each stop restarts the process, and the restart adds load to the API
// server.
const (
	leaseDuration  = 36 * time.Second
	renewDeadline  = 20 * time.Second
	retryPeriod    = 4 * time.Second
	requestTimeout = 5 * time.Second
)

// NeedsElection reports whether the cluster can have a second control-plane machine. It returns
// true even if this machine lists only itself, because another machine may list this machine.
func NeedsElection(spec nodespec.Spec) bool {
	return spec.Node.ControlPlane && len(spec.ControlPlanes) > 0
}

// Component returns the component, to which the caller adds Elector.Run. The component has to
// precede the components that wait for leadership, because components stop in reverse order: the
// lease is released after these components have stopped.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// Elector runs the leader election of process "controllers". New creates it.
type Elector struct {
	leading chan struct{} // closed when this process becomes the leader
}

// New returns an Elector. Its process is not the leader before Run has won the election.
func New() *Elector {
	return &Elector{leading: make(chan struct{})}
}

// WhenLeading wraps the Run function of the named component. The returned function waits until this
// process is the leader, and then calls run and returns its error. While it waits, it announces the
// component as ready with the detail "standby". It returns nil if its context ends first.
func (l *Elector) WhenLeading(name string, run func(context.Context, component.Announce) error) func(context.Context, component.Announce) error {
	return func(ctx context.Context, announce component.Announce) error {
		announce(name, true, "standby")
		select {
		case <-l.leading:
			return run(ctx, announce)
		case <-ctx.Done():
			return nil
		}
	}
}

// Run takes part in the election until ctx is done. It then releases the lease and returns nil. If
// the process loses the lease, Run returns an error, and the process exits and restarts: its
// controllers must not run at the same time as the controllers of the next leader.
func (l *Elector) Run(ctx context.Context, env component.Env) error {
	config, err := env.WaitConfig(ctx, Name)
	if config == nil {
		return err
	}
	config.Timeout = requestTimeout
	client, err := component.NewClient(config)
	if err != nil {
		return err
	}
	lost := errors.New("lost the lease: another machine is the leader, or the API server did not answer for too long")
	led := sync.OnceFunc(func() { close(l.leading) })
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: env.Spec.Node.Name},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { led() },
			OnStoppedLeading: func() {},
			OnNewLeader: func(name string) {
				if name == env.Spec.Node.Name {
					env.Announce(Name, true, "the controllers of this machine run")
					return
				}
				env.Announce(Name, true, "standby: the controllers of "+name+" run")
			},
		},
	})
	if err != nil {
		return fmt.Errorf("cannot start leader election: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return lost
}
