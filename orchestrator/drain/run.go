package drain

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/cell"
)

// Name is the component that undoes the drain of the node.
const Name = "uncordon"

const (
	// period is the interval of checks whether a drain has expired.
	period = 30 * time.Second
	// leaveTimeout bounds the report that the machine shuts down, because the shutdown waits for
	// this report.
	leaveTimeout = 2 * time.Second
)

// Run undoes a drain of the node from before the boot, and each later drain that expires. It sets
// the conditions of a machine that shuts down, and removes them when the node is ready again, until
// ctx is done. registered waits for the Node object.
func Run(ctx context.Context, env component.Env, registered func(context.Context) error) error {
	down := make(chan os.Signal, 1) // machined announces a shutdown by SIGPWR
	signal.Notify(down, syscall.SIGPWR)
	defer signal.Stop(down)
	started := time.Now()
	if err := registered(ctx); err != nil {
		return nil // asked to stop
	}
	api, err := Client(env.Dirs)
	if err != nil {
		return err
	}
	if err := retryUndo(ctx, api, env.Spec.Node.Name, booted, func(problem error) { env.Announce(Name, false, problem.Error()) }); err != nil {
		return nil // asked to stop
	}
	env.Announce(Name, true, "")
	k, err := newKeeper(env.Spec.Node.Name, api, env.Nodes, started)
	if err != nil {
		return err
	}
	return k.run(ctx, down, env.AnnounceReady(Name))
}

// keeper maintains the conditions of the machine's own Node.
type keeper struct {
	name    string
	api     kubernetes.Interface
	factory component.Factory
	nodes   cache.SharedIndexInformer
	changed cell.Signal
	started time.Time
	leaving atomic.Bool // the machine shuts down
	// first is the time of the first report of the kubelet that the component saw, perhaps from
	// before this boot. It is nil until the Node is known.
	first *metav1.Time
}

func newKeeper(name string, api kubernetes.Interface, watched *component.Nodes, started time.Time) (*keeper, error) {
	nodes, err := watched.Informer()
	if err != nil {
		return nil, err
	}
	return &keeper{name: name, api: api, factory: watched, nodes: nodes, changed: cell.NewSignal(), started: started}, nil
}

// run works until ctx is done, and reports a shutdown before it returns.
func (k *keeper) run(ctx context.Context, down <-chan os.Signal, report func(detail string)) error {
	left := make(chan struct{})
	go func() {
		defer close(left)
		select {
		case <-down:
			k.leave(ctx)
		case <-ctx.Done():
		}
	}()
	defer func() { <-left }()
	return component.Reconciler{
		Changed: k.changed, Factories: []component.Factory{k.factory}, Watched: []component.Watched{{Informer: k.nodes, Name: k.name, IgnoreDeletes: true}},
		Unsynced: true, Period: period, RetryInterval: retryInterval, Pass: k.pass, Report: report,
	}.Run(ctx)
}

// leave reports that the machine shuts down. A failed report does not delay the shutdown, because
// the Node becomes unready anyway.
func (k *keeper) leave(ctx context.Context) {
	k.leaving.Store(true)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	n, err := getNode(ctx, k.api, k.name)
	if err != nil || n == nil {
		return
	}
	why := cause{reasonOf("shutdown"), "the machine shuts down in order"}
	if planned := condition(n, corev1.NodeMaintenancePlanned); planned != nil && planned.Status == corev1.ConditionTrue {
		why.reason = planned.Reason
	}
	_ = setConditions(ctx, k.api, n, leaving, why, time.Now())
}

// pass undoes a drain that has expired, and ends the maintenance of a node that is ready again.
func (k *keeper) pass(ctx context.Context) (string, error) {
	item, there, err := k.nodes.GetStore().GetByKey(k.name)
	n, ok := item.(*corev1.Node)
	if err != nil || !there || !ok || k.leaving.Load() {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := time.Now()
	if expired(n, now) {
		return "", undo(ctx, k.api, k.name, undone, func(n *corev1.Node) bool { return expired(n, now) })
	}
	if !k.isBack(n) {
		return "", nil
	}
	return "", setConditions(ctx, k.api, n, ready, cause{}, now)
}

// isBack reports whether the kubelet has reported since this boot of the machine that the node is
// ready. A Node can still have a report from before the shutdown. The clock can be wrong during a
// boot, so any report also counts if its time differs from that of the first report.
func (k *keeper) isBack(n *corev1.Node) bool {
	c := condition(n, corev1.NodeReady)
	if c == nil {
		return false
	}
	if k.first == nil {
		k.first = &c.LastHeartbeatTime
	}
	return c.Status == corev1.ConditionTrue && (!c.LastHeartbeatTime.Time.Before(k.started.Truncate(time.Second)) || !c.LastHeartbeatTime.Equal(k.first))
}
