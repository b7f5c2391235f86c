// Package leaderelection runs the controllers of a single control-plane machine at a time. The
// controllers of the other machines do not start until the leader's lease expires or is released.
//
// The whole process has a common lease instead of a lease for each component: the components start
// and stop together, and the Lease shows the leader. A single control-plane machine does not run
// this component. It has no second candidate, and an election costs seconds after a power cut,
// because the lease of the dead process has to expire first.
//
// Each process uses only the API server of its own machine, not the balancer that the node uses. So
// a machine loses the lease when its API server fails, and a machine with a working server takes it
// (docs/decisions/0032-balancer.md).
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

// Name is the component's name.
const Name = "leader-election"

// leaseName is the name of the Lease in kube-system. Upstream's kube-controller-manager has the
// right to this Lease and does not use it here.
const leaseName = "kube-controller-manager"

// Another machine takes over after the leader has not renewed the lease for leaseDuration. The
// leader stops after renewDeadline without an answer; its last request and the two requests that
// release the lease end before the lease expires. The times are about twice upstream's: a leader
// that stops because the API server is slow restarts, and the restart slows the server further.
const (
	leaseDuration  = 36 * time.Second
	renewDeadline  = 20 * time.Second
	retryPeriod    = 4 * time.Second
	requestTimeout = 5 * time.Second
)

// NeedsElection reports whether the cluster can have a second candidate. Another machine may list
// this machine as a control-plane machine even if this machine lists only itself.
func NeedsElection(spec nodespec.Spec) bool {
	return spec.Node.ControlPlane && len(spec.ControlPlanes) > 0
}

// Component describes the component without its Run function. It precedes the components that wait
// for leadership, so it stops after them.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// Elector runs the leader election of the controllers process. Make it with New.
type Elector struct {
	leading chan struct{} // closed when this process becomes the leader
}

// New returns an Elector that is not the leader.
func New() *Elector {
	return &Elector{leading: make(chan struct{})}
}

// WhenLeading returns a function that calls run once this process is the leader. Until then the
// component is ready as a standby.
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

// Run takes part in the election until ctx is done and then releases the lease. Loss of the lease
// is an error: the process exits and restarts, because its controllers must not work beside the
// next leader's.
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
