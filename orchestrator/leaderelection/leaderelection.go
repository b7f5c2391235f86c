// Package leaderelection lets the controllers of one control-plane machine work at a time, where there are
// several: the others stand by, with nothing started, until the lease of the one that leads has run
// out or was given back.
//
// It is one lease for the whole process, not one for each component: they start and end together,
// and who leads is one line to look up. A control plane of one machine has no such component: there
// is nobody to elect, and an election costs seconds after a power cut, when the dead process's
// lease has to run out first.
//
// Each of these processes works with the API server of its own machine alone, and not through the
// balancer as the node does: a machine whose API server does not work lets go of the lead, and
// those of one whose does take it (docs/decisions/0032-balancer.md).
package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "lead"

// leaseName is the lease's, in kube-system. Upstream's controller manager has the right to this
// one, and does not use it here.
const leaseName = "kube-controller-manager"

// Others take over when the leader was silent for lease; it stops by itself after renew without an
// answer, and what it asks last, and the two requests with which it gives the lease back, end
// before that. The times are about twice upstream's: a leader that stops because the API server is
// slow starts anew, and makes it slower.
const (
	lease   = 36 * time.Second
	renew   = 20 * time.Second
	retry   = 4 * time.Second
	request = 5 * time.Second
)

// NeedsElection tells whether there may be anybody to lead: another machine may name this one while this
// one names only itself.
func NeedsElection(spec nodespec.Spec) bool { return spec.ControlPlane && len(spec.ControlPlanes) > 0 }

// Component describes it without its Run function. It comes before those that it leads, and so
// stops after them.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return component.Component{
		Process: component.Controllers,
		Name:    Name,
		Files:   []component.File{kubeconfig.ControllersFile(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)},
	}
}

// Elector is whether this process leads. Make it with New.
type Elector struct {
	spec    nodespec.Spec
	dirs    dirs.Dirs
	leading chan struct{} // closed when it does
}

// New returns a Lead that does not lead yet.
func New(spec nodespec.Spec, dirs dirs.Dirs) *Elector {
	return &Elector{spec: spec, dirs: dirs, leading: make(chan struct{})}
}

// WhenLeading returns run for when this process leads. Until then the component stands by, and that is
// all that is expected of it.
func (l *Elector) WhenLeading(name string, run func(context.Context, component.Announce) error) func(context.Context, component.Announce) error {
	return func(ctx context.Context, announce component.Announce) error {
		announce(name, true, "stands by")
		select {
		case <-l.leading:
			return run(ctx, announce)
		case <-ctx.Done():
			return nil
		}
	}
}

// Run stands for the lead until ctx is done, and gives it back then. Having lost it is an error:
// the process ends and begins anew, because what its controllers would still do is the next one's
// by now. rights waits until leases can be asked for.
func (l *Elector) Run(ctx context.Context, rights func(context.Context) error, announce component.Announce) error {
	announce(Name, false, "waiting for the API server")
	if err := rights(ctx); err != nil {
		return nil // asked to stop before there was anything to stop
	}
	path := kubeconfig.Path(l.dirs.Controllers, Name)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("%s: cannot use: %w", path, err)
	}
	config.Timeout = request
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	lost := errors.New("another machine leads now, or the API server was silent for too long")
	led := sync.OnceFunc(func() { close(l.leading) })
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.spec.NodeName},
		},
		LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { led() },
			OnStoppedLeading: func() {},
			OnNewLeader: func(name string) {
				if name == l.spec.NodeName {
					announce(Name, true, "this machine's controllers work")
					return
				}
				announce(Name, true, "stands by: those of "+name+" work")
			},
		},
	})
	if err != nil {
		return fmt.Errorf("cannot stand for the lead: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return lost
}
