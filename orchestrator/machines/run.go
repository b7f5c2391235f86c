package machines

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "machines"

const (
	// period is the time between two passes without a change. Such passes are necessary because
	// windows, soak times and permits end at a certain time.
	period = 10 * time.Second
	// minInterval is the shortest time from the end of a pass to the next pass. The limit is
	// necessary because a rollout changes many objects, and a pass over a thousand machines takes
	// about 30 ms (TestCost).
	minInterval = 500 * time.Millisecond
	// retryInterval is the delay before the next pass after a failure. timeout is the deadline of a
	// request.
	retryInterval = 2 * time.Second
	timeout       = 10 * time.Second
	// pollInterval is the time between two checks whether the API server serves all kinds.
	pollInterval = time.Second
)

// Component returns the component, to which the caller adds Run.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// Run maintains the objects until ctx is done. It does nothing while
// Cluster.spec.kubernetes.machineObjects is disabled. The component is always ready, because
// missing objects are no fault of this machine or of the running version. A process can call Run
// only once, because Run registers metrics of the process.
func Run(ctx context.Context, env component.Env, from Sources) error {
	metrics := new(collector)
	legacyregistry.CustomMustRegister(metrics)
	env.Announce(Name, true, "")
	if err := env.Rights(ctx); err != nil {
		return nil // ctx was done before the component began
	}
	report := env.AnnounceReady(Name)
	settings, err := readSettings(env.Spec)
	if err != nil {
		return err
	}
	return component.WhileMachineObjects(ctx, env.Dirs.Controllers, func() { report("") }, func(ctx context.Context, enabled nodespec.MachineObjects) error {
		ready := env
		ready.Announce = func(_ string, _ bool, detail string) { report(detail) }
		own, acting, err := nodecontrollers.ControllerConfigs(ctx, ready, Name, bootstrap.MachinesAccount)
		if own == nil {
			return err
		}
		settings.Claims = enabled.Claims
		return runEnabled(ctx, settings, env, from, identities{own, acting}, metrics, report)
	})
}

// identities are the configurations of two clients: the client that watches (own) and the client
// that performs changes (acting).
type identities struct{ own, acting *rest.Config }

// runEnabled maintains the objects until ctx is done. machineObjects is enabled when it is called.
func runEnabled(ctx context.Context, settings Settings, env component.Env, from Sources, as identities, metrics *collector, report func(string)) error {
	watches, err := newClients(as.own)
	if err != nil {
		return err
	}
	acting := rest.CopyConfig(as.acting)
	acting.Timeout = timeout
	acts, err := newClients(acting)
	if err != nil {
		return err
	}
	later, err := newClients(acting) // with a limit of requests of its own
	if err != nil {
		return err
	}
	if !watches.served(ctx, settings.Claims, report) {
		return nil
	}
	c, err := newController(settings, env.Nodes, watches, acts)
	if err != nil {
		return err
	}
	c.later = later
	c.hostsFile, c.claimsFile = filepath.Join(env.Dirs.Controllers, nodespec.HostsFile), filepath.Join(env.Dirs.Controllers, nodespec.ClaimsFile)
	c.overviews = newOverviews(from, settings, env, watches, acts)
	// No role is necessary for these reads: the controllers may read all objects.
	reading := rest.CopyConfig(as.own)
	reading.Timeout, reading.QPS, reading.Burst = timeout, 50, 100
	reads, err := component.NewClient(reading)
	if err != nil {
		return err
	}
	if c.reads, err = component.NewClient(reading); err != nil {
		return err
	}
	c.switches = power.New(ctx, reads, func() {
		c.changed.Wake()
		c.moved.Wake()
	})
	defer metrics.serve(c)()
	return c.run(ctx, report)
}

// served waits until the API server serves all kinds. It reports why it waits, for example because
// another program has installed a definition without the necessary version. The result is false if
// ctx ends first.
func (c *clients) served(ctx context.Context, claims bool, report func(string)) bool {
	for reported := ""; ; {
		err := c.unserved(ctx, claims)
		if err == nil {
			return true
		}
		if why := fmt.Sprintf("waiting for the kinds of machines: %v", err); why != reported && ctx.Err() == nil {
			reported = why
			report(why)
		}
		if backoff.Sleep(ctx, pollInterval) != nil {
			return false
		}
	}
}

// unserved returns nil if the API server serves all kinds. Otherwise it returns the error of the
// first kind that the API server does not serve.
func (c *clients) unserved(ctx context.Context, claims bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := cmp.Or(probe(ctx, c.clusters), probe(ctx, c.orlopCluster), probe(ctx, c.planes), probe(ctx, c.machines), probe(ctx, c.checks), probe(ctx, c.own), probe(ctx, c.hosts),
		probe(ctx, c.health), probe(ctx, c.components))
	if err == nil && claims {
		err = cmp.Or(probe(ctx, c.sets), probe(ctx, c.deployments), probe(ctx, c.templates), probe(ctx, c.rules))
	}
	return err
}

func probe[T, L runtime.Object](ctx context.Context, c client[T, L]) error {
	_, err := c.List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// readSettings reads the values of the cluster that the objects contain from the node
// specification. It fails if the endpoint is no URL with a port.
func readSettings(spec nodespec.Spec) (Settings, error) {
	endpoint, err := url.Parse(spec.Endpoint)
	if err != nil {
		return Settings{}, fmt.Errorf("machines: cannot read endpoint: %w", err)
	}
	port, err := strconv.ParseUint(endpoint.Port(), 10, 16)
	if err != nil {
		return Settings{}, fmt.Errorf("machines: cannot read the port of endpoint %s: %w", spec.Endpoint, err)
	}
	return Settings{
		Name: spec.Cluster, Host: endpoint.Hostname(), Port: int32(port), Pods: prefixes(spec.Network.PodCIDRs), Services: prefixes(spec.Network.ServiceCIDRs),
		Domain: spec.Network.DNSDomain, ControlPlanes: spec.ControlPlanes, Own: spec.Node.Name,
	}, nil
}

func prefixes(all []netip.Prefix) []string {
	var out []string
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// controller runs the passes of the component.
type controller struct {
	settings Settings
	acts     *clients
	changed  cell.Signal
	now      func() time.Time
	ended    time.Time // end of the last pass

	factories []component.Factory
	caches
	switches *power.Switches
	inventoryLoop
}

// caches are the informers of the watched objects.
type caches struct {
	nodes    cache.SharedIndexInformer
	clusters cache.SharedIndexInformer
	infra    cache.SharedIndexInformer
	planes   cache.SharedIndexInformer
	machines cache.SharedIndexInformer
	checks   cache.SharedIndexInformer
	own      cache.SharedIndexInformer
	hosts    cache.SharedIndexInformer
	// These four are nil if claims are disabled.
	sets        cache.SharedIndexInformer
	deployments cache.SharedIndexInformer
	templates   cache.SharedIndexInformer
	rules       cache.SharedIndexInformer

	jobs     cache.SharedIndexInformer
	cronJobs cache.SharedIndexInformer
}

// newController returns a controller that watches with the clients watches and performs changes
// with the clients acts.
func newController(settings Settings, watched *component.Nodes, watches, acts *clients) (*controller, error) {
	nodes, err := watched.Informer()
	if err != nil {
		return nil, err
	}
	gates := kubeinformers.NewSharedInformerFactoryWithOptions(watches.nodes, 0, kubeinformers.WithNamespace(machineapi.Namespace))
	c := &controller{
		settings: settings, acts: acts, changed: cell.NewSignal(), now: time.Now, inventoryLoop: inventoryLoop{moved: cell.NewSignal()},
	}
	c.caches = caches{
		nodes:    nodes,
		clusters: informer(watches.clusters, &clusterv1.Cluster{}),
		infra:    informer(watches.orlopCluster, &machineapi.OrlopCluster{}),
		planes:   informer(watches.planes, &controlplane.OrlopControlPlane{}),
		machines: informer(watches.machines, &clusterv1.Machine{}),
		checks:   informer(watches.checks, &clusterv1.MachineHealthCheck{}),
		own:      informer(watches.own, &machineapi.OrlopMachine{}),
		hosts:    informer(watches.hosts, &machineapi.OrlopHost{}),
		jobs:     gates.Batch().V1().Jobs().Informer(),
		cronJobs: gates.Batch().V1().CronJobs().Informer(),
	}
	if settings.Claims {
		c.sets, c.deployments = informer(watches.sets, &clusterv1.MachineSet{}), informer(watches.deployments, &clusterv1.MachineDeployment{})
		c.templates, c.rules = informer(watches.templates, &machineapi.OrlopMachineTemplate{}), informer(watches.rules, &machineapi.OrlopApprovalRule{})
	}
	c.factories = []component.Factory{watched, gates, &component.Informers{All: c.ofMachines()}}
	return c, nil
}

// ofMachines returns the informers of Cluster API's and Orlop's kinds.
func (c *caches) ofMachines() []cache.SharedIndexInformer {
	all := []cache.SharedIndexInformer{c.clusters, c.infra, c.planes, c.machines, c.checks, c.own, c.hosts}
	if c.sets != nil {
		all = append(all, c.sets, c.deployments, c.templates, c.rules)
	}
	return all
}

func (c *controller) run(ctx context.Context, report func(string)) error {
	watched := []component.Watched{{Informer: c.nodes, Same: sameNode}}
	for _, i := range append(c.ofMachines(), c.jobs, c.cronJobs) {
		watched = append(watched, component.Watched{Informer: i})
	}
	both := &details{report: report}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	second := make(chan error, 1)
	go func() {
		defer cancel() // an error of the second loop also ends the first
		second <- c.runInventory(ctx, watched, both)
	}()
	err := component.Reconciler{
		Changed: c.changed, Period: period, RetryInterval: retryInterval, Pass: c.pass, Report: func(detail string) { both.set(&both.first, detail) },
		Factories: c.factories, Watched: watched,
	}.Run(ctx)
	cancel()
	return cmp.Or(err, <-second)
}

// pass performs the changes that Plan computes. It returns the summary of Plan. If a change
// contains a permit or an order, pass reads the machines from the API server and calls Plan again,
// because the caches can be stale. Plan also decides about fences, which must not be late. So pass
// does not wait for the second loop (passInventory).
func (c *controller) pass(ctx context.Context) (string, error) {
	if err := backoff.Sleep(ctx, minInterval-time.Since(c.ended)); err != nil {
		return "", nil // ctx is done
	}
	defer func() { c.ended = time.Now() }()
	result, err := c.plan(ctx)
	// Without a plan, no request is wanted, so a request that waits does not switch a machine off.
	c.switches.Want(wanted(result.Calls))
	if err != nil {
		return "", err
	}
	failed := perform(result.Changes, func(change Change) error { return c.acts.do(ctx, change) })
	for _, call := range result.Calls {
		c.switches.Call(call.machine, call.uuid, call.action)
	}
	return result.Summary, failed
}

// plan returns the result of Plan for the snapshot of a pass.
func (c *controller) plan(ctx context.Context) (Result, error) {
	snapshot := c.cached()
	if err := c.readPower(ctx, &snapshot); err != nil {
		return Result{}, err
	}
	result, err := Plan(snapshot)
	if err != nil || !result.Permits {
		return result, err
	}
	if snapshot, err = c.fresh(ctx, snapshot); err != nil {
		return Result{}, fmt.Errorf("cannot read the machines: %w", err)
	}
	return Plan(snapshot)
}

// wanted returns the requests by the names of their machines.
func wanted(calls []powerCall) map[string]fence.Action {
	actions := map[string]fence.Action{}
	for _, call := range calls {
		actions[call.machine] = call.action
	}
	return actions
}

// perform performs changes in order. A conflict or a missing object is no error: the cache is
// stale, and its next update triggers the next pass. A change that the API server rejects as
// invalid does not stop the changes after it, because a stolen worker could make its own object
// invalid to delay other machines. perform then returns the first such error at its end. Any other
// error ends perform.
func perform[C fmt.Stringer](changes []C, do func(C) error) (rejected error) {
	for _, change := range changes {
		err := do(change)
		if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue
		}
		invalid := apierrors.IsInvalid(err)
		err = fmt.Errorf("cannot %s: %w", change, err)
		if !invalid {
			return err
		}
		if rejected == nil {
			rejected = err
		}
	}
	return rejected
}

// cached returns a snapshot from the caches.
func (c *controller) cached() Snapshot {
	s := Snapshot{
		Settings: c.settings, Now: c.now(), Nodes: component.Objects[*corev1.Node](c.nodes),
		Machines: c.ofCluster(component.Objects[*clusterv1.Machine](c.machines)), Own: component.Objects[*machineapi.OrlopMachine](c.own),
		Jobs: component.Objects[*batchv1.Job](c.jobs), CronJobs: component.Objects[*batchv1.CronJob](c.cronJobs),
	}
	s.Checks = slices.DeleteFunc(component.Objects[*clusterv1.MachineHealthCheck](c.checks), func(check *clusterv1.MachineHealthCheck) bool {
		return check.Spec.ClusterName != c.settings.Name
	})
	s.Cluster = named(component.Objects[*clusterv1.Cluster](c.clusters), c.settings.Name)
	s.OrlopCluster = named(component.Objects[*machineapi.OrlopCluster](c.infra), c.settings.Name)
	s.ControlPlane = named(component.Objects[*controlplane.OrlopControlPlane](c.planes), c.settings.Name)
	return s
}

// fresh returns the snapshot with the objects on which a permit or a fence depends, read from the
// API server. The time of the snapshot is after the last read, because Plan computes the age of a
// reading of the power from this time.
func (c *controller) fresh(ctx context.Context, s Snapshot) (Snapshot, error) {
	var err error
	if s.Own, err = list(ctx, c.acts.own); err != nil {
		return s, err
	}
	all, err := list(ctx, c.acts.machines)
	if err != nil {
		return s, err
	}
	s.Machines = c.ofCluster(all)
	if s.OrlopCluster, err = c.acts.orlopCluster.Get(ctx, c.settings.Name, metav1.GetOptions{}); err != nil {
		return s, err
	}
	err = c.freshPower(ctx, &s)
	s.Now = c.now()
	return s, err
}

// ofCluster removes the Machine objects of other clusters. They exist if this cluster is a
// management cluster of Cluster API.
func (c *controller) ofCluster(all []*clusterv1.Machine) []*clusterv1.Machine {
	return slices.DeleteFunc(all, func(m *clusterv1.Machine) bool { return m.Spec.ClusterName != c.settings.Name })
}

// named returns the object with this name, or nil if there is none.
func named[T metav1.Object](all []T, name string) (found T) {
	for _, o := range all {
		if o.GetName() == name {
			return o
		}
	}
	return found
}

// describe returns the kind and the name of an object, for messages.
func describe(o any) string {
	kind := reflect.TypeOf(o).Elem().Name()
	if m, ok := o.(metav1.Object); ok {
		return kind + " " + m.GetName()
	}
	return kind
}

// relevant returns a copy of a Node with only the fields that this package uses. A heartbeat of the
// kubelet changes none of these fields. The result is nil if the object is no Node.
func relevant(object any) *corev1.Node {
	n, ok := object.(*corev1.Node)
	if !ok {
		return nil
	}
	meta := component.Trimmed(n)
	meta.ResourceVersion = ""
	if role, labelled := n.Labels[bootstrap.ControlPlaneKey]; labelled {
		meta.Labels = map[string]string{bootstrap.ControlPlaneKey: role}
	}
	ready := nodeReady(n)
	conditions := []corev1.NodeCondition{{Type: ready.Type, Status: ready.Status, Message: ready.Message}}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeMaintenanceInProgress {
			conditions = append(conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		}
	}
	return &corev1.Node{
		ObjectMeta: meta,
		Spec:       corev1.NodeSpec{ProviderID: n.Spec.ProviderID, Taints: n.Spec.Taints},
		Status: corev1.NodeStatus{
			Addresses: n.Status.Addresses, NodeInfo: n.Status.NodeInfo,
			Conditions: conditions,
		},
	}
}

// sameNode reports whether an update of a Node has changed no field that this package uses.
func sameNode(before, now any) bool {
	a, b := relevant(before), relevant(now)
	return a != nil && b != nil && reflect.DeepEqual(a, b)
}
