package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/podnetwork"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// watcher watches Pods, Namespaces, NetworkPolicies and Nodes. While the API server does not
// answer, the watcher retains the last known objects.
type watcher struct {
	spec                              nodespec.Spec
	pods, namespaces, policies, nodes cache.SharedIndexInformer
	// signals a change that affects the table, or a failed list or watch
	changed cell.Signal

	mu      sync.Mutex
	problem string // the error of the last failed list or watch
}

// watch returns a watcher. The watcher's informers start when the node has its rights, and run
// until ctx is done.
func watch(ctx context.Context, api kubernetes.Interface, env component.Env) (*watcher, error) {
	nodes, err := env.Nodes.Informer()
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTransform(trim))
	f := &watcher{
		spec: env.Spec, changed: cell.NewSignal(),
		pods: factory.Core().V1().Pods().Informer(), namespaces: factory.Core().V1().Namespaces().Informer(),
		policies: factory.Networking().V1().NetworkPolicies().Informer(), nodes: nodes,
	}
	failed := func(err error) {
		f.mu.Lock()
		f.problem = err.Error()
		f.mu.Unlock()
		f.changed.Wake()
	}
	env.Nodes.OnError(failed)
	for _, list := range []cache.SharedIndexInformer{f.pods, f.namespaces, f.policies} {
		if err := list.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			failed(err)
		}); err != nil {
			return nil, fmt.Errorf("cannot watch: %w", err)
		}
	}
	if err := component.Watch(f.changed.Wake, component.Watched{Informer: f.pods, Same: same}, component.Watched{Informer: f.namespaces, Same: same},
		component.Watched{Informer: f.policies, Same: same}, component.Watched{Informer: f.nodes, Same: sameRanges}); err != nil {
		return nil, err
	}
	go func() {
		if env.Rights(ctx) != nil {
			return // stopped before the component began
		}
		factory.Start(ctx.Done())
		env.Nodes.Start(ctx.Done())
		if cache.WaitForCacheSync(ctx.Done(), f.pods.HasSynced, f.namespaces.HasSynced, f.policies.HasSynced, f.nodes.HasSynced) {
			f.changed.Wake()
		}
	}()
	return f, nil
}

func (f *watcher) lists() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{f.pods, f.namespaces, f.policies, f.nodes}
}

// input returns the current input. It returns an error until all informers have their first lists,
// because an object that is not listed yet would count as deleted.
func (f *watcher) input() (Input, error) {
	if slices.ContainsFunc(f.lists(), func(l cache.SharedIndexInformer) bool { return !l.HasSynced() }) {
		f.mu.Lock()
		defer f.mu.Unlock()
		text := "waiting for the first lists of Pods, Namespaces, NetworkPolicies and Nodes"
		if f.problem != "" {
			text += ": " + f.problem
		}
		return Input{}, errors.New(text)
	}
	w := empty(f.spec)
	w.Ranges = podnetwork.Ranges(f.spec, component.Objects[*corev1.Node](f.nodes))
	w.Pods, w.Namespaces = component.Objects[*corev1.Pod](f.pods), component.Objects[*corev1.Namespace](f.namespaces)
	w.Policies = component.Objects[*networkingv1.NetworkPolicy](f.policies)
	return w, nil
}

// empty returns the input of a cluster without objects, from the specification of the node.
func empty(spec nodespec.Spec) Input {
	return Input{Node: spec.Node.Name, Bridge: podnetwork.Bridge, Tunnel: podnetwork.TunnelOf(spec), Cluster: spec.Network.PodCIDRs}
}

// trim removes all fields that input does not use. A Pod of some kilobytes shrinks to a few hundred
// bytes.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		out := &corev1.Pod{ObjectMeta: bare(o)}
		out.Spec.NodeName, out.Spec.HostNetwork = o.Spec.NodeName, o.Spec.HostNetwork
		out.Spec.Containers, out.Spec.InitContainers = ports(o.Spec.Containers), ports(o.Spec.InitContainers)
		out.Status.Phase, out.Status.PodIPs = o.Status.Phase, o.Status.PodIPs
		return out, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: bare(o)}, nil
	case *networkingv1.NetworkPolicy:
		return &networkingv1.NetworkPolicy{ObjectMeta: bare(o), Spec: o.Spec}, nil
	}
	return object, nil
}

// bare returns the metadata of an object that input and same use.
func bare(o metav1.Object) metav1.ObjectMeta {
	meta := component.Trimmed(o)
	meta.CreationTimestamp, meta.Labels = o.GetCreationTimestamp(), o.GetLabels()
	return meta
}

// ports returns the containers that have named ports, without the fields that the table does not
// depend on.
func ports(containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range containers {
		named := corev1.Container{RestartPolicy: c.RestartPolicy}
		for _, p := range c.Ports {
			if p.Name != "" {
				named.Ports = append(named.Ports, corev1.ContainerPort{Name: p.Name, Protocol: p.Protocol, ContainerPort: p.ContainerPort})
			}
		}
		if named.Ports != nil {
			out = append(out, named)
		}
	}
	return out
}

// sameRanges reports whether two states of a Node have the same pod ranges.
func sameRanges(before, after any) bool {
	a, ok := before.(*corev1.Node)
	b, is := after.(*corev1.Node)
	return ok && is && a.UID == b.UID && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs)
}

// same reports whether two trimmed states of an object differ at most in their resource version.
// Most changes of a Pod affect only fields that trim removes.
func same(before, after any) bool {
	a, ok := before.(metav1.Object)
	b, is := after.(metav1.Object)
	if !ok || !is {
		return false
	}
	version := a.GetResourceVersion()
	// The copy has the resource version of the earlier state. Objects of the cache must not be
	// changed.
	switch o := after.(type) {
	case *corev1.Pod:
		c := *o
		after, b = &c, &c
	case *corev1.Namespace:
		c := *o
		after, b = &c, &c
	case *networkingv1.NetworkPolicy:
		c := *o
		after, b = &c, &c
	default:
		return false
	}
	b.SetResourceVersion(version)
	return equality.Semantic.DeepEqual(before, after)
}
