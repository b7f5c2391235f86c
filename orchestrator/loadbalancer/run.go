package loadbalancer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "loadbalancer"

// account is the service account with which the controller writes. Kubernetes creates this account
// with its rights for the load balancer controller of a cloud provider. No other component uses it
// here.
const account = "service-controller"

// retryInterval is the delay before the next pass after a failure. timeout is the deadline of a
// request.
const (
	retryInterval = 2 * time.Second
	timeout       = 10 * time.Second
)

// Component describes the component without its Run function. The component also runs without
// pools: it then reports by Events why Services have no address.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// Run assigns addresses until ctx is done. It fails if the clients or the informers cannot be set
// up.
func Run(ctx context.Context, env component.Env) error {
	own, acting, err := nodecontrollers.ControllerClient(ctx, env, Name, account)
	if own == nil {
		return err
	}
	events, stop := component.Recorder(ctx, acting, Name)
	defer stop()
	c, err := newController(env.Spec, env.Nodes, own, acting, events)
	if err != nil {
		return err
	}
	return c.run(ctx, env.AnnounceReady(Name))
}

// controller writes the decisions of Step to the status of the Services. It runs one pass at a
// time, and each pass sees the writes of all previous passes.
type controller struct {
	pools    []nodespec.Pool
	own      []netip.Addr // addresses of machines and of the API, from the node specification
	now      func() time.Time
	client   kubernetes.Interface
	events   record.EventRecorder
	factory  informers.SharedInformerFactory
	services cache.SharedIndexInformer
	watched  *component.Nodes
	nodes    cache.SharedIndexInformer // the informer of watched
	changed  cell.Signal
	// written maps the key of a Service to its resource version before the last write. A cache that
	// still has this version is stale.
	written    map[string]string
	unanswered map[string]string // like written, for writes with an unknown result
	timer      *time.Timer       // triggers a pass at the time Decision.Again
	reported   map[types.UID][]Problem
}

func newController(spec nodespec.Spec, watched *component.Nodes, own, acting kubernetes.Interface, events record.EventRecorder) (*controller, error) {
	nodes, err := watched.Informer()
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(trim))
	c := &controller{
		pools: spec.Network.Pools, own: spec.Reserved().Machines, now: time.Now, client: acting, events: events, factory: factory,
		services: factory.Core().V1().Services().Informer(), watched: watched, nodes: nodes,
		changed: cell.NewSignal(), written: map[string]string{}, unanswered: map[string]string{}, reported: map[types.UID][]Problem{},
	}
	c.timer = time.AfterFunc(time.Hour, c.changed.Wake)
	c.timer.Stop()
	return c, nil
}

// trim removes large fields that this package does not read.
func trim(object any) (any, error) {
	if s, ok := object.(*corev1.Service); ok {
		s.ManagedFields = nil
	}
	return object, nil
}

func (c *controller) run(ctx context.Context, tell func(detail string)) error {
	return component.Reconciler{
		Changed: c.changed, RetryInterval: retryInterval, Pass: c.pass, Report: tell,
		Factories: []component.Factory{c.factory, c.watched},
		// The kubelet updates its Node often, so changes of other fields than the addresses trigger
		// no pass.
		Watched: []component.Watched{{Informer: c.services}, {Informer: c.nodes, Same: func(before, now any) bool {
			return slices.Equal(nodeAddresses(before), nodeAddresses(now))
		}}},
	}.Run(ctx)
}

// pass runs Step once on the caches and writes the differences. It returns the status text of the
// component. It returns "" if a cache does not contain the last writes yet; the next update of the
// cache then triggers the next pass. A write with an unknown result ends the pass with an error. A
// write that the API server rejected does not end the pass, and pass returns the first such error
// at its end.
func (c *controller) pass(ctx context.Context) (string, error) {
	if err := c.resolveUnanswered(ctx); err != nil {
		return "", err
	}
	if c.behind() {
		return "", nil
	}
	world, objects := c.input()
	decisions := Step(world)
	served := 0
	var again time.Time
	var refused []error // a rejected write does not block other Services
	for _, d := range decisions {
		if len(d.Addresses) > 0 || d.Unassigned && len(Addresses(objects[d.Key])) > 0 {
			served++
		}
		if !d.Again.IsZero() && (again.IsZero() || d.Again.Before(again)) {
			again = d.Again
		}
		if err := c.apply(ctx, objects[d.Key], d); len(c.unanswered) > 0 {
			return "", err
		} else if err != nil {
			refused = append(refused, err)
		}
	}
	c.prune(objects)
	if c.timer.Stop(); !again.IsZero() {
		c.timer.Reset(again.Sub(world.Now))
	}
	if len(refused) > 0 {
		return "", refused[0]
	}
	return fmt.Sprintf("%d of %d Services have addresses", served, len(decisions)), nil
}

// resolveUnanswered finds out the result of each write that got no answer: it reads the Service and
// compares its version. It fails if a Service cannot be read.
func (c *controller) resolveUnanswered(ctx context.Context) error {
	for key, version := range c.unanswered {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		namespace, name, _ := strings.Cut(key, "/")
		now, err := c.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("Service %s: cannot be read: %w", key, err)
		}
		if err != nil || now.ResourceVersion != version {
			c.written[key] = version
		}
		delete(c.unanswered, key)
	}
	return nil
}

// behind reports whether the cache lacks a written change. With such a cache, Step could assign an
// address twice.
func (c *controller) behind() bool {
	for key, version := range c.written {
		object, found, err := c.services.GetStore().GetByKey(key)
		if s, ok := object.(*corev1.Service); err == nil && found && ok && s.ResourceVersion == version {
			return true
		}
		delete(c.written, key)
	}
	return false
}

// input returns the input of Step from the caches, and the Service objects by key.
func (c *controller) input() (Input, map[string]*corev1.Service) {
	w := Input{Now: c.now(), Pools: c.pools, Machines: slices.Clone(c.own)}
	objects := map[string]*corev1.Service{}
	for _, o := range c.services.GetStore().List() {
		if s, ok := o.(*corev1.Service); ok {
			seen := read(s)
			objects[seen.Key] = s
			w.Services = append(w.Services, seen)
		}
	}
	for _, o := range c.nodes.GetStore().List() {
		w.Nodes = append(w.Nodes, nodeAddresses(o)...)
	}
	return w, objects
}

func nodeAddresses(object any) []netip.Addr {
	var all []netip.Addr
	if n, ok := object.(*corev1.Node); ok {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				all = append(all, ip)
			}
		}
		all = append(all, nodespec.ReadPublished(n.Annotations[nodespec.AddressesAnnotation])...)
	}
	return all
}

// apply writes the status of a Service if it differs from the decision. It then creates an Event
// for each problem if the problems have changed. It returns the error of the write.
func (c *controller) apply(ctx context.Context, s *corev1.Service, d Decision) error {
	if want := ingress(d.Addresses); !d.Unassigned && !equality.Semantic.DeepEqual(want, s.Status.LoadBalancer.Ingress) {
		if err := c.write(ctx, s, d.Key, want); err != nil {
			return err
		}
		if len(d.Addresses) > 0 {
			c.events.Eventf(s, corev1.EventTypeNormal, "AddressGiven", "the Service has %s", joinAddresses(d.Addresses))
		}
	}
	if !slices.Equal(c.reported[s.UID], d.Problems) {
		for _, p := range d.Problems {
			c.events.Event(s, corev1.EventTypeWarning, p.Reason, p.Message)
		}
		c.reported[s.UID] = d.Problems
	}
	return nil
}

// write patches the status of a Service. The API server rejects the patch if the Service has
// changed since the decision.
func (c *controller) write(ctx context.Context, s *corev1.Service, key string, want []corev1.LoadBalancerIngress) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": s.UID, "resourceVersion": s.ResourceVersion},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": want}},
	})
	if err != nil {
		return fmt.Errorf("Service %s: its status cannot be encoded: %w", key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = c.client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
		c.written[key] = s.ResourceVersion // the watch will deliver the newer version
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
	default:
		c.unanswered[key] = s.ResourceVersion
	}
	if err != nil {
		return fmt.Errorf("Service %s: its addresses cannot be written: %w", key, err)
	}
	return nil
}

// prune drops the reported problems of deleted Services from memory.
func (c *controller) prune(objects map[string]*corev1.Service) {
	alive := map[types.UID]bool{}
	for _, s := range objects {
		alive[s.UID] = true
	}
	for uid := range c.reported {
		if !alive[uid] {
			delete(c.reported, uid)
		}
	}
}

func joinAddresses(addresses []netip.Addr) string {
	var all []string
	for _, a := range addresses {
		all = append(all, a.String())
	}
	return strings.Join(all, ", ")
}
