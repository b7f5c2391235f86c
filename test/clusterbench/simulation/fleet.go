package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/vm"
)

const (
	// These are the defaults of the kubelet for its Lease.
	leaseSeconds = 40
	renewEvery   = 10 * time.Second
	// callLimit is the deadline of one call, in the time of the nodes.
	callLimit = 10 * time.Second
)

// Fleet is a set of simulated nodes of one cluster.
type Fleet struct {
	ctx    context.Context // ends the nodes
	clock  vm.Clock        // clock of the nodes
	client func(node string) (kubernetes.Interface, error)
	alive  sync.WaitGroup

	mu    sync.Mutex
	nodes []*member
	stats Stats
}

// Name returns the name of the n-th node, for n from 0.
func Name(n int) string { return fmt.Sprintf("simulated-%04d", n+1) }

// Stats is the present state of all nodes together.
type Stats struct {
	Nodes  int // registered nodes
	Ready  int // nodes that have reported Ready
	Pods   int // pods that were reported as running and are not ending
	Failed int // calls that failed; the fleet repeats them
	Last   error
}

// New returns a fleet without nodes. Its nodes run until ctx ends. The nodes use machine, the clock
// of the machine with the API server. config has the credentials of an administrator, because the
// fleet impersonates nodes.
func New(ctx context.Context, config *rest.Config, machine vm.Clock) *Fleet {
	return &Fleet{ctx: ctx, clock: machine, client: func(name string) (kubernetes.Interface, error) {
		own := rest.CopyConfig(config)
		own.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + name, Groups: []string{"system:nodes"}}
		// With a separate dialer, client-go does not share the connection of another node.
		own.Dial = (&net.Dialer{Timeout: machine.Outside(callLimit)}).DialContext
		// An empty list selects HTTP/2, which a kubelet uses.
		own.NextProtos = nil
		own.Timeout, own.QPS = 0, -1
		api, err := kubernetes.NewForConfig(own)
		if err != nil {
			return nil, fmt.Errorf("node %s: cannot make its client: %w", name, err)
		}
		return api, nil
	}}
}

// Stats returns the present state of all nodes together.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Nodes = len(f.nodes)
	for _, m := range f.nodes {
		ready, pods := m.look()
		s.Pods += pods
		if ready {
			s.Ready++
		}
	}
	return s
}

// Wait waits until all goroutines of the nodes have ended. The context of the fleet has to end
// first. Wait does not delete the Node objects.
func (f *Fleet) Wait() { f.alive.Wait() }

// Grow registers further nodes, one after the other, until the fleet has size nodes. The interval
// between two registrations is at least pause by the clock of the nodes. Grow repeats failed
// requests until ctx ends.
func (f *Fleet) Grow(ctx context.Context, size int, pause time.Duration) error {
	for n := f.Stats().Nodes; n < size; n++ {
		next := time.NewTimer(f.clock.Outside(pause))
		if err := f.register(ctx, Name(n)); err != nil {
			next.Stop()
			return fmt.Errorf("node %d of %d: %w", n+1, size, err)
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

func (f *Fleet) register(ctx context.Context, name string) error {
	api, err := f.client(name)
	if err != nil {
		return err
	}
	for {
		calling, cancel := context.WithTimeout(ctx, f.clock.Outside(callLimit))
		object, err := api.CoreV1().Nodes().Create(calling, nodeObject(name, f.clock.Now()), meta.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the answer to an earlier request was lost
			object, err = api.CoreV1().Nodes().Get(calling, name, meta.GetOptions{})
		}
		cancel()
		if err == nil {
			m := &member{fleet: f, api: api, object: object, node: newNode(f.clock.Now(), rand.Float64()-0.5), news: make(chan func(time.Time))}
			f.mu.Lock()
			f.nodes = append(f.nodes, m)
			f.mu.Unlock()
			f.alive.Go(func() { m.live(f.ctx) })
			return nil
		}
		f.failed(err)
		if ended := backoff.Sleep(ctx, f.clock.Outside(retry)); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

func (f *Fleet) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Failed++
	f.stats.Last = err
}

// member is a node of the fleet with its client.
type member struct {
	fleet  *Fleet
	api    kubernetes.Interface
	object *core.Node
	since  time.Time            // time of the change to Ready; only live writes it
	news   chan func(time.Time) // observations for the node, executed in order by live
	asking sync.WaitGroup       // the open calls

	mu   sync.Mutex
	node *node
}

func (m *member) look() (ready bool, pods int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node.ready, m.node.count()
}

// live performs the calls of a kubelet until ctx ends.
func (m *member) live(ctx context.Context) {
	defer m.asking.Wait()
	m.asking.Go(func() { m.lease().Run(ctx) })
	m.asking.Go(func() { m.pods().RunWithContext(ctx) })
	now, outside := m.fleet.clock.Now, m.fleet.clock.Outside
	m.since = now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case tell := <-m.news:
			m.mu.Lock()
			tell(now())
			m.mu.Unlock()
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		todo, again := m.node.next(now())
		m.mu.Unlock()
		for _, a := range todo {
			m.asking.Go(func() {
				err := m.do(ctx, a)
				if err != nil && ctx.Err() == nil {
					m.fleet.failed(err)
				}
				m.tell(ctx, func(now time.Time) { m.node.done(a, err != nil, now) })
			})
		}
		timer.Reset(outside(again.Sub(now())))
	}
}

func (m *member) tell(ctx context.Context, news func(time.Time)) {
	select {
	case m.news <- news:
	case <-ctx.Done():
	}
}

// lease returns the Lease controller of the kubelet, with the values of the kubelet. The library
// waits by the clock of this computer. It uses leaseClock only for the times in the Lease.
func (m *member) lease() lease.Controller {
	own := func(l *coordination.Lease) error {
		l.OwnerReferences = []meta.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.object.Name, UID: m.object.UID}}
		return nil
	}
	return lease.NewController(leaseClock{dilated: m.fleet.clock}, m.api, m.object.Name, leaseSeconds, nil, m.fleet.clock.Outside(renewEvery), m.object.Name, core.NamespaceNodeLease, own)
}

// leaseClock returns the time of the nodes. The Lease library calls only Now.
type leaseClock struct {
	clock.RealClock
	dilated vm.Clock
}

func (c leaseClock) Now() time.Time { return c.dilated.Now() }

// pods returns an informer that passes the pods of this node to the node.
func (m *member) pods() cache.Controller {
	pods, own := m.api.CoreV1().Pods(meta.NamespaceAll), fields.OneTermEqualSelector("spec.nodeName", m.object.Name).String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			o.FieldSelector = own
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
			o.FieldSelector = own
			return pods.Watch(ctx, o)
		},
	}
	see := func(object any) {
		if p, is := object.(*core.Pod); is {
			m.tell(m.fleet.ctx, func(now time.Time) { m.node.see(p, now) })
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(source, m.api), ObjectType: &core.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    see,
			UpdateFunc: func(_, object any) { see(object) },
			DeleteFunc: func(object any) {
				if last, is := object.(cache.DeletedFinalStateUnknown); is {
					object = last.Obj
				}
				if p, is := object.(*core.Pod); is {
					m.tell(m.fleet.ctx, func(time.Time) { m.node.gone(p.UID) })
				}
			},
		},
	})
	return controller
}

// do sends an action to the API server. It returns nil if the pod of the action no longer exists.
func (m *member) do(ctx context.Context, a action) error {
	ctx, cancel := context.WithTimeout(ctx, m.fleet.clock.Outside(callLimit))
	defer cancel()
	now := m.fleet.clock.Now()
	if a.kind == reportNode {
		patch, err := nodePatch(now, m.since)
		if err == nil {
			_, err = m.api.CoreV1().Nodes().Patch(ctx, m.object.Name, types.StrategicMergePatchType, patch, meta.PatchOptions{}, "status")
		}
		return err
	}
	pods := m.api.CoreV1().Pods(a.pod.Namespace)
	var err error
	if a.kind == removePod {
		grace := int64(0)
		err = pods.Delete(ctx, a.pod.Name, meta.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: meta.NewUIDPreconditions(string(a.pod.UID))})
	} else {
		var patch []byte
		if patch, err = podPatch(a.pod, a.kind, now); err == nil {
			_, err = pods.Patch(ctx, a.pod.Name, types.StrategicMergePatchType, patch, meta.PatchOptions{}, "status")
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
