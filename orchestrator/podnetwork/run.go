package podnetwork

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/knftables"

	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component for the network. NodeName is the name of the component that
// announces the condition Ready of the Node object.
const (
	Name     = "network"
	NodeName = "node"
)

// Client is the name of the kubeconfig of the node's agent.
const Client = "node-agent"

// publishRetry is the delay after a failed write of the endpoint of the cluster DNS. It is short,
// because the rights and the namespace of a new cluster may exist in a moment.
const publishRetry = 200 * time.Millisecond

// resyncPeriod is the period at which the network is applied again. It bounds how long a wrong
// state of the kernel lasts, for example after a manual change, or after a link was down.
const resyncPeriod = time.Minute

// retryInterval is the delay after a failure.
const retryInterval = 2 * time.Second

// Component describes the network without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	config := kubeconfig.NodeFile(spec, dirs, Client, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
	return component.Component{Process: component.Node, Name: Name, Files: []component.File{config}}
}

// Agent maintains the network of the node. Make it with New.
type Agent struct {
	spec      nodespec.Spec
	dirs      dirs.Dirs
	gate      *apiready.Waiter
	watched   *component.Nodes
	nodes     chan *corev1.Node // the states of the own Node, for the network
	seen      chan *corev1.Node // the states of the own Node, for RunNode
	changed   cell.Signal       // wakes after a change of any Node
	all       cache.Store       // all Nodes; complete after the first signal on changed
	addrs     []netip.Addr
	bridged   chan struct{} // closed when the bridge has the addresses addrs
	known     chan struct{} // closed when the own Node object exists
	applied   []netip.Prefix
	plan      Plan      // for the ranges in applied
	appliedAt time.Time // the time of the last complete application of plan
}

// New returns an agent that uses gate to wait for the API server.
func New(spec nodespec.Spec, dirs dirs.Dirs, gate *apiready.Waiter, nodes *component.Nodes) *Agent {
	return &Agent{
		spec: spec, dirs: dirs, gate: gate, watched: nodes,
		nodes: make(chan *corev1.Node, 1), seen: make(chan *corev1.Node, 1), bridged: make(chan struct{}), known: make(chan struct{}),
		changed: cell.NewSignal(),
	}
}

// Addresses waits until the bridge has its addresses, and returns them. It returns an error if ctx
// ends first.
func (a *Agent) Addresses(ctx context.Context) ([]netip.Addr, error) {
	if err := component.Wait(ctx, a.bridged); err != nil {
		return nil, err
	}
	return a.addrs, nil
}

// Registered waits until the own Node object exists. It returns an error if ctx ends first.
func (a *Agent) Registered(ctx context.Context) error { return component.Wait(ctx, a.known) }

// Run applies the Nodes to the network until ctx is done.
func (a *Agent) Run(ctx context.Context, announce component.Announce) error {
	start := a.recall
	if a.spec.External.Network {
		start = a.configureExternal
	}
	if err := start(); err != nil {
		return err
	}
	if err := a.gate.WaitRBAC(ctx); err != nil {
		return nil // ctx was done before the API server granted the rights
	}
	config, err := component.LoadConfig(component.KubeconfigPath(a.dirs.Node, Client))
	if err != nil {
		return err
	}
	api, err := component.NewClient(config)
	if err != nil {
		return err
	}
	if err := a.watch(ctx); err != nil {
		return err
	}
	if a.spec.External.Network {
		return a.publishLoop(ctx, api, announce)
	}
	nft, err := knftables.New(knftables.InetFamily, table)
	if err != nil {
		return fmt.Errorf("nftables: cannot use: %w", err)
	}
	announce(Name, false, "waiting for the node's pod range")
	l := loop{Agent: a, api: api, nft: nft, timer: newTimer(), mesh: mesh{
		spec: a.spec, dirs: a.dirs, kernel: kernel{ahead: handshakes{}},
		publish: func(ctx context.Context, key string) error { return a.publishKey(ctx, config, key) },
	}}
	defer l.timer.Stop()
	return l.run(ctx, announce)
}

// loop applies the Nodes to the network of an Agent.
type loop struct {
	*Agent
	api   kubernetes.Interface
	nft   knftables.Interface
	mesh  mesh
	timer *time.Timer

	last        *corev1.Node // the newest state of the own Node
	unpublished bool         // true: the endpoint of the cluster DNS may be out of date
	complete    bool         // true: all Nodes are known
	looked      time.Time    // the time of the last update of the mesh
	others      string       // the status text about the other nodes
}

func (l *loop) run(ctx context.Context, announce component.Announce) error {
	for told := ""; ; {
		look := true // true: the mesh needs an update
		select {
		case l.last = <-l.nodes:
			l.unpublished = true
		case <-l.changed:
			l.complete = true
		case <-l.timer.C:
			// While the endpoint of the cluster DNS cannot be published, the timer fires several
			// times a second, and most of these times the mesh needs no update.
			since := time.Since(l.looked)
			look = !l.unpublished || since >= resyncPeriod || l.mesh.failed && since >= retryInterval
		case <-ctx.Done():
			return nil
		}
		if l.last == nil {
			continue
		}
		if err := l.apply(ctx, l.nft, l.last); err != nil {
			return err
		}
		if len(l.applied) == 0 {
			continue
		}
		if detail := l.step(ctx, look); detail != told && ctx.Err() == nil {
			announce(Name, true, detail)
			told = detail
		}
	}
}

// step applies the parts of the network that may fail and are retried. It sets the timer and
// returns the status text. If look is true, it also updates the mesh.
func (l *loop) step(ctx context.Context, look bool) string {
	detail := fmt.Sprintf("pods in %v", l.applied)
	l.timer.Reset(resyncPeriod)
	if time.Since(l.appliedAt) >= resyncPeriod {
		if err := l.finish(ctx, l.nft); err != nil {
			detail = fmt.Sprintf("%s; %v", detail, err)
			l.timer.Reset(retryInterval)
		}
	}
	if l.unpublished {
		if err := l.publish(ctx, l.api, l.last); err != nil {
			detail = fmt.Sprintf("%s; cluster DNS is not published: %v", detail, err)
			l.timer.Reset(publishRetry)
		} else {
			l.unpublished = false
		}
	}
	if l.complete && look {
		l.looked = time.Now()
		if l.others = l.mesh.update(ctx, l.applied, l.all.List()); l.mesh.failed && !l.unpublished {
			l.timer.Reset(retryInterval)
		}
	}
	return detail + l.others
}

// newTimer returns a stopped timer.
func newTimer() *time.Timer {
	t := time.NewTimer(resyncPeriod)
	t.Stop()
	return t
}

// recall adopts the addresses of the bridge of an earlier process. Pods use this bridge, and the
// cluster DNS has to answer them even if the API server returns the node's ranges much later.
func (a *Agent) recall() error {
	have, err := bridgeAddresses()
	if err != nil {
		return err
	}
	if a.addrs = former(a.spec.Network.PodCIDRs, have); len(a.addrs) > 0 {
		close(a.bridged)
	}
	return nil
}

// watch watches the Nodes. It forwards the newest state of the own Node, and wakes changed after a
// change of any Node. changed stays silent until all Nodes are known, because the mesh would treat
// unknown Nodes as deleted.
func (a *Agent) watch(ctx context.Context) error {
	informer, err := a.watched.Informer()
	if err != nil {
		return err
	}
	a.all = informer.GetStore()
	known := sync.OnceFunc(func() { close(a.known) })
	change := a.changed.Wake
	pass := func(object any) {
		if informer.HasSynced() {
			change()
		}
		node, ok := object.(*corev1.Node)
		if !ok || node.Name != a.spec.Node.Name {
			return
		}
		known()
		for _, to := range []chan *corev1.Node{a.nodes, a.seen} {
			select { // the newest state replaces an unread state
			case <-to:
			default:
			}
			to <- node
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: pass,
		UpdateFunc: func(before, object any) {
			// The status of a Node changes every few seconds. A change of another Node counts only
			// if alike returns false.
			if node := object.(*corev1.Node); node.Name == a.spec.Node.Name || !alike(before.(*corev1.Node), node) {
				pass(object)
			}
		},
		DeleteFunc: func(any) { change() },
	}
	if _, err := informer.AddEventHandler(handler); err != nil && !informer.IsStopped() {
		return fmt.Errorf("Nodes: cannot watch: %w", err)
	}
	a.watched.Start(ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			change()
		}
	}()
	return nil
}

// alike reports whether two states of a Node are the same for other nodes: addresses, pod ranges
// and key are equal.
func alike(a, b *corev1.Node) bool {
	return a.UID == b.UID && slices.Equal(a.Status.Addresses, b.Status.Addresses) && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) && a.Annotations[KeyAnnotation] == b.Annotations[KeyAnnotation]
}

// apply applies the pod ranges of the Node to the machine's network, if the Node has ranges and
// they are not applied yet. It returns an error if the ranges have changed: the process must then
// restart.
func (a *Agent) apply(ctx context.Context, nft knftables.Interface, node *corev1.Node) error {
	ranges, err := podRanges(node)
	if err != nil || len(ranges) == 0 || slices.Equal(ranges, a.applied) {
		return err
	}
	if len(a.applied) > 0 {
		return fmt.Errorf("Node %s: pod range changed from %v to %v: restarting", node.Name, a.applied, ranges)
	}
	mtu, err := underlayMTU(a.spec.Node.IPs[0])
	if err != nil {
		return err
	}
	plan, err := NewPlan(a.spec, a.dirs, ranges, mtu)
	if err != nil {
		return err
	}
	if err := ensureBridge(plan.Gateways, plan.MTU); err != nil {
		return err
	}
	// The CNI plugins need only the bridge, so pods may start before the routes and rules are
	// complete.
	file := component.File{Path: filepath.Join(a.dirs.CNI.Config, "10-orlop.conflist"), Mode: 0o600, Content: plan.Conflist}
	if err := component.WriteFile(file); err != nil {
		return err
	}
	addrs := plan.Addresses()
	switch {
	case len(a.addrs) == 0:
		a.addrs = addrs
		close(a.bridged)
	case !slices.Equal(a.addrs, addrs): // the cluster DNS listens on the old address
		return fmt.Errorf("Node %s: the bridge had the addresses %v, and has %v now: restarting", node.Name, a.addrs, addrs)
	}
	a.applied, a.plan = ranges, plan
	return a.finish(ctx, nft)
}

// finish sets the routes and nftables rules of the plan. It is repeated every resyncPeriod, because
// another program may have removed them.
func (a *Agent) finish(ctx context.Context, nft knftables.Interface) error {
	if err := ensureRoutes(Bridge, a.plan.Routes, a.addrs); err != nil {
		return err
	}
	if err := filter(ctx, nft, a.plan); err != nil {
		return err
	}
	a.appliedAt = time.Now()
	return nil
}

// podRanges returns the pod ranges of a Node, or an error if one of them is invalid.
func podRanges(node *corev1.Node) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range node.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("Node %s: cannot use pod range: %w", node.Name, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// publish makes the node an endpoint of the cluster DNS. If an external component provides the
// cluster DNS, publish deletes the endpoint.
func (a *Agent) publish(ctx context.Context, api kubernetes.Interface, node *corev1.Node) error {
	for _, want := range dnsSlices(node, a.addrs) {
		all := api.DiscoveryV1().EndpointSlices(want.Namespace)
		if a.spec.External.DNS {
			if err := all.Delete(ctx, want.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			continue
		}
		have, err := all.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = all.Create(ctx, want, metav1.CreateOptions{})
		} else if err == nil && !same(have, want) {
			want.ResourceVersion = have.ResourceVersion
			_, err = all.Update(ctx, want, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// publishKey writes the node's public key to its Node. It uses the identity of the kubelet, with
// which upstream's admission (NodeRestriction) permits changes of this Node only.
func (a *Agent) publishKey(ctx context.Context, config *rest.Config, key string) error {
	// the timeout ends a request that the API server does not answer
	api, err := component.KubeletClient(config, a.dirs, 10*time.Second)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, KeyAnnotation, key)
	_, err = api.CoreV1().Nodes().Patch(ctx, a.spec.Node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func same(have, want *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(have.Labels, want.Labels) && equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) &&
		equality.Semantic.DeepEqual(have.Ports, want.Ports) && equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences)
}

// RunNode announces the condition Ready of the Node object until ctx is done.
func (a *Agent) RunNode(ctx context.Context, announce component.Announce) error {
	last := ""
	for {
		select {
		case node := <-a.seen:
			ready, detail := state(node)
			if now := fmt.Sprint(ready, detail); now != last {
				announce(NodeName, ready, detail)
				last = now
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// state reports whether the condition Ready of a Node is true. If it is not, detail has the reason.
func state(node *corev1.Node) (ready bool, detail string) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return true, ""
			}
			return false, fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return false, "registered, no status yet"
}
