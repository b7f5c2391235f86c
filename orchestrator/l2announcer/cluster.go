package l2announcer

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/loadbalancer"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// byService is the name of the index that finds the EndpointSlices of a Service by its namespace
// and name.
const byService = "service"

// Cluster watches the Nodes, Services and EndpointSlices, which are the input of the election.
type Cluster struct {
	Changed  cell.Signal // signals each change after all caches are synced
	pools    []nodespec.Pool
	nodes    cache.SharedIndexInformer
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
}

// Watch starts the informers, which run until ctx is done. The result signals its first change when
// all caches are synced. Watch fails if an informer cannot be set up.
func Watch(ctx context.Context, api kubernetes.Interface, pools []nodespec.Pool) (*Cluster, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTransform(trim))
	c := &Cluster{
		pools: pools, Changed: cell.NewSignal(), nodes: factory.Core().V1().Nodes().Informer(),
		services: factory.Core().V1().Services().Informer(), slices: factory.Discovery().V1().EndpointSlices().Informer(),
	}
	if err := c.slices.AddIndexers(cache.Indexers{byService: func(o any) ([]string, error) { return []string{serviceOf(o)}, nil }}); err != nil {
		return nil, fmt.Errorf("EndpointSlices: cannot be indexed: %w", err)
	}
	synced := []cache.InformerSynced{c.nodes.HasSynced, c.services.HasSynced, c.slices.HasSynced}
	change := func() {
		for _, known := range synced {
			if !known() {
				return
			}
		}
		c.Changed.Wake()
	}
	if err := component.Watch(change, component.Watched{Informer: c.nodes}, component.Watched{Informer: c.services}, component.Watched{Informer: c.slices}); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			change()
		}
	}()
	return c, nil
}

// trim returns a copy of the object with only the fields that this package reads. This saves memory
// in the caches of the informers.
func trim(object any) (any, error) {
	meta := func(o metav1.Object) metav1.ObjectMeta {
		out := component.Trimmed(o)
		out.CreationTimestamp, out.Labels = o.GetCreationTimestamp(), o.GetLabels()
		return out
	}
	switch o := object.(type) {
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: meta(o), Spec: corev1.NodeSpec{Unschedulable: o.Spec.Unschedulable}, Status: corev1.NodeStatus{
			Conditions: o.Status.Conditions, Addresses: o.Status.Addresses, NodeInfo: corev1.NodeSystemInfo{BootID: o.Status.NodeInfo.BootID},
		}}, nil
	case *corev1.Service:
		return &corev1.Service{ObjectMeta: meta(o), Status: o.Status, Spec: corev1.ServiceSpec{
			Type: o.Spec.Type, LoadBalancerClass: o.Spec.LoadBalancerClass, ExternalTrafficPolicy: o.Spec.ExternalTrafficPolicy,
		}}, nil
	case *discoveryv1.EndpointSlice:
		slim := &discoveryv1.EndpointSlice{ObjectMeta: meta(o)}
		for _, e := range o.Endpoints {
			slim.Endpoints = append(slim.Endpoints, discoveryv1.Endpoint{NodeName: e.NodeName, Conditions: e.Conditions})
		}
		return slim, nil
	}
	return object, nil
}

// serviceOf returns "namespace/name" of the Service to which an EndpointSlice belongs, or "" for an
// object of another type.
func serviceOf(object any) string {
	if s, ok := object.(*discoveryv1.EndpointSlice); ok {
		return s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
	}
	return ""
}

// Read returns all Nodes, sorted by name, and the Services that have an address from a pool, sorted
// by age with the oldest first. It reads the caches and calls no API server.
func (c *Cluster) Read() ([]Node, []Service, error) {
	var nodes []Node
	for _, n := range component.Objects[*corev1.Node](c.nodes) {
		nodes = append(nodes, readNode(n))
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	objects := slices.DeleteFunc(component.Objects[*corev1.Service](c.services), func(s *corev1.Service) bool { return !loadbalancer.IsManaged(s) })
	slices.SortFunc(objects, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var services []Service
	for _, o := range objects {
		parts, err := c.slices.GetIndexer().ByIndex(byService, o.Namespace+"/"+o.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("EndpointSlices: cannot be found: %w", err)
		}
		if s := readService(o, parts, c.pools); len(s.Addresses) > 0 {
			services = append(services, s)
		}
	}
	return nodes, services, nil
}

func readNode(n *corev1.Node) Node {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	node := Node{Name: n.Name, Ready: ready, Excluded: excluded, Cordoned: n.Spec.Unschedulable, BootID: n.Status.NodeInfo.BootID}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			node.Addresses = append(node.Addresses, ip)
		}
	}
	return node
}

// readService reads a Service with its EndpointSlices. It omits addresses outside all pools.
// Without this check, a client with write access to the status of a Service could make nodes answer
// for the address of the gateway.
func readService(o *corev1.Service, parts []any, pools []nodespec.Pool) Service {
	s := Service{Local: o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal}
	for _, a := range loadbalancer.Addresses(o) {
		if slices.ContainsFunc(pools, func(p nodespec.Pool) bool { return p.Contains(a) }) {
			s.Addresses = append(s.Addresses, a)
		}
	}
	if !s.Local {
		return s
	}
	var ending []string
	for _, part := range parts {
		slice, ok := part.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		for _, e := range slice.Endpoints {
			switch c := e.Conditions; {
			case e.NodeName == nil:
			case ptr.Deref(c.Ready, true):
				s.Endpoints = append(s.Endpoints, *e.NodeName)
			case ptr.Deref(c.Serving, false) && ptr.Deref(c.Terminating, false):
				ending = append(ending, *e.NodeName)
			}
		}
	}
	if len(s.Endpoints) == 0 {
		// If a Service has no ready endpoint on any node, kube-proxy uses endpoints that terminate
		// and still serve (topology.go of kube-proxy, KEP-1669). Elections use the same endpoints.
		s.Endpoints = ending
	}
	slices.Sort(s.Endpoints)
	s.Endpoints = slices.Compact(s.Endpoints)
	return s
}

// addresses returns all addresses of the Services.
func addresses(services []Service) []netip.Addr {
	var all []netip.Addr
	for _, s := range services {
		all = append(all, s.Addresses...)
	}
	return all
}
