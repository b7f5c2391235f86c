package machineobject

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the name of the component.
const Name = "machine-object"

const (
	// retryInterval is the delay before the next attempt after a failure.
	retryInterval = 2 * time.Second
	// minInterval is the shortest time between two writes of the status. The limit is necessary
	// because the health of the machine changes often during a boot.
	minInterval = 500 * time.Millisecond
	// period is the time between two passes without a change. Such a pass is necessary when a
	// permit expires, and when the delay after a rejected request ends.
	period = 10 * time.Second
	// answerTimeout is the deadline of a request for a release or a step. It is long, because
	// machined may drain the node first, which takes an hour at most.
	answerTimeout = 90 * time.Minute
	// reportTimeout is the deadline of a report to machined. It is short, because machined only
	// stores the report in memory.
	reportTimeout = 5 * time.Second
	// leaderTimeout is the deadline of the request to etcd for its leader.
	leaderTimeout = 2 * time.Second
)

// Component returns the component, to which the caller adds Run.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.NodeComponent(spec, dirs, Name, nodespec.KubeletCert, nodespec.KubeletKey)
}

// Run updates the status of the machine's own object and performs its permits and orders, until ctx
// is done. Run calls the function leads to find out whether the etcd member of this machine is the
// leader. The component is always ready: a version on trial must not be rolled back because the
// object cannot be written.
func Run(ctx context.Context, env component.Env, leads func(context.Context) (bool, error)) error {
	idle := func() { env.Announce(Name, true, "") }
	idle()
	return component.WhileMachineObjects(ctx, env.Dirs.Node, idle, func(ctx context.Context, _ nodespec.MachineObjects) error {
		if err := env.Rights(ctx); err != nil {
			return nil // ctx was done before the component began
		}
		config, err := env.Config(Name)
		if err != nil {
			return err
		}
		client, err := newObjects(config)
		if err != nil {
			return err
		}
		local, closeConn, err := dialMachined(paths.ObjectSocket)
		if err != nil {
			return err
		}
		defer closeConn()
		if !env.Spec.Node.ControlPlane || len(env.Spec.OtherControlPlanes()) == 0 {
			// On a worker, and on the only control-plane machine, no decision depends on the
			// leader.
			leads = func(context.Context) (bool, error) { return false, nil }
		}
		a := &agent{
			name: env.Spec.Node.Name, addresses: addresses(env.Spec), informer: client.informer(env.Spec.Node.Name), write: client.writeStatus,
			machined: local, leads: leads, now: time.Now, changed: cell.NewSignal(),
		}
		return a.run(ctx, env.AnnounceReady(Name))
	})
}

// addresses returns the hostname and the IP addresses of the machine for the status of its object.
func addresses(spec nodespec.Spec) []machineapi.Address {
	all := []machineapi.Address{{Type: "Hostname", Address: spec.Node.Name}}
	for _, ip := range spec.Node.IPs {
		all = append(all, machineapi.Address{Type: "InternalIP", Address: ip.String()})
	}
	return all
}

// agent runs the passes of the component.
type agent struct {
	name      string
	addresses []machineapi.Address
	informer  cache.SharedIndexInformer // watches only the machine's own object
	write     func(context.Context, *machineapi.OrlopMachine) error
	machined  *machined
	leads     func(context.Context) (bool, error)
	now       func() time.Time
	changed   cell.Signal
	written   time.Time           // time of the last write of the status
	reported  *api.ReportedObject // the last successful report to machined, or nil

	mu       sync.Mutex // guards the fields below
	last     attempt
	repaired repairAttempt
	problem  string // why the object cannot be watched, or empty
}

func (a *agent) run(ctx context.Context, report func(detail string)) error {
	if err := a.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) { a.setProblem(err.Error()) }); err != nil {
		return fmt.Errorf("cannot watch: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { a.machined.watch(ctx, a.changed.Wake) })
	return component.Reconciler{
		Changed: a.changed, Unsynced: true, Factories: []component.Factory{&component.Informers{All: []cache.SharedIndexInformer{a.informer}}}, Watched: []component.Watched{{Informer: a.informer, IgnoreDeletes: true}},
		Period: period, RetryInterval: retryInterval, Report: report,
		Pass: a.pass,
	}.Run(ctx)
}

// pass writes the status of the object. Then it requests from machined a release, if the object
// permits one, or a step of a repair, if the object orders one. It returns the status text of the
// component. If the object does not exist, pass does nothing, because the controllers create it.
func (a *agent) pass(ctx context.Context) (detail string, err error) {
	if err := backoff.Sleep(ctx, minInterval-time.Since(a.written)); err != nil {
		return "", nil // ctx is done
	}
	item, there, err := a.informer.GetStore().GetByKey(machineapi.Namespace + "/" + a.name)
	object, ok := item.(*machineapi.OrlopMachine)
	last, problem := a.lastAttempt()
	if err != nil || !there || !ok {
		return strings.TrimSuffix("waiting for the object of the machine: "+problem, ": "), nil
	}
	seen, _ := a.machined.state.Get()
	if seen.state == nil {
		return seen.problem, nil
	}
	in := input{object: object, state: seen.state, addresses: a.addresses, leader: a.isLeader(ctx), last: last, repaired: a.lastRepair(), now: a.now()}
	next, change := step(in)
	repairs := in.repairStep(&next, change != nil)
	a.report(ctx, &api.ReportedObject{Wanted: in.target(), Message: changeOf(next)})
	if !equality.Semantic.DeepEqual(next, object.Status) {
		written := object.DeepCopy()
		written.Status, a.written = next, time.Now()
		switch err := a.write(ctx, written); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return "", nil // the cache is stale, and its next update triggers the next pass
		case err != nil:
			return "", fmt.Errorf("OrlopMachine %s: the status cannot be written: %w", a.name, err)
		}
	}
	if change != nil {
		a.ask(ctx, change)
	}
	if repairs != "" {
		a.askRepair(ctx, orderOf(object))
	}
	return describe(next), nil
}

// report sends the wanted release and the state of the object to machined if they have changed.
// machined shows them in Cluster.ClusterHealth, also while Kubernetes is down. The next pass
// repeats a report that failed.
func (a *agent) report(ctx context.Context, r *api.ReportedObject) {
	if proto.Equal(a.reported, r) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if _, err := a.machined.client.Report(ctx, &api.ReportObjectRequest{Object: r}); err == nil {
		a.reported = r
	}
}

// isLeader reports whether the etcd member of this machine is the leader. It returns false if etcd
// does not respond.
func (a *agent) isLeader(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	yes, err := a.leads(ctx)
	return err == nil && yes
}

// ask requests another release from machined, in the background. The answer can take minutes:
// machined finds the bundle, and a rollback drains the node first.
func (a *agent) ask(ctx context.Context, change *api.ChangeReleaseRequest) {
	a.set(attempt{version: change.Version, running: true})
	go func() {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		_, err := a.machined.client.ChangeRelease(ctx, change)
		done := attempt{version: change.Version, ended: a.now()}
		if err != nil {
			done.problem = status.Convert(err).Message()
		}
		a.set(done)
		a.changed.Wake()
	}()
}

func (a *agent) set(last attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = last
}

func (a *agent) setProblem(problem string) {
	a.mu.Lock()
	a.problem = problem
	a.mu.Unlock()
	a.changed.Wake()
}

func (a *agent) lastAttempt() (last attempt, problem string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last, a.problem
}

// describe returns the status text of the component.
func describe(s machineapi.OrlopMachineStatus) string {
	return cmp.Or(changeOf(s), "the object is up to date")
}

// changeOf returns the message about a rolled back, running or rejected change of the release, or
// "" if the status has no such message.
func changeOf(s machineapi.OrlopMachineStatus) string {
	for _, c := range s.Conditions {
		switch {
		case c.Type == machineapi.ConditionRolledBack && c.Status == "True":
			return c.Message
		case c.Type == machineapi.ConditionUpdating && (c.Status == "True" || c.Reason == machineapi.ReasonRefused):
			return c.Message
		}
	}
	return ""
}
