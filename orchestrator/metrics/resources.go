package metrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// nodeMetrics returns the usage of a node at time now. The bool is false if the usage is unknown.
func nodeMetrics(node *corev1.Node, known measured, now time.Time) (metrics.NodeMetrics, bool) {
	usage, ok := known.node.usage(now)
	if !ok {
		return metrics.NodeMetrics{}, false
	}
	return metrics.NodeMetrics{
		ObjectMeta: objectMeta(node, known.node), Usage: usage,
		Timestamp: metav1.NewTime(known.node.last.at), Window: metav1.Duration{Duration: known.node.length()},
	}, true
}

// podMetrics returns the usage of a pod at time now. The bool is false if the usage of a container
// is unknown, because the sum would be wrong without this container. known must be from the kubelet
// of the pod's own node, because other kubelets are not trusted for this pod. The timestamp of the
// result is the time of the oldest last sample.
func podMetrics(pod *corev1.Pod, known measured, now time.Time) (metrics.PodMetrics, bool) {
	containers := known.pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
	if len(containers) == 0 {
		return metrics.PodMetrics{}, false
	}
	var out metrics.PodMetrics
	var oldest window
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		w := containers[name]
		usage, ok := w.usage(now)
		if !ok {
			return metrics.PodMetrics{}, false
		}
		if oldest.last.at.IsZero() || w.last.at.Before(oldest.last.at) {
			oldest = w
		}
		out.Containers = append(out.Containers, metrics.ContainerMetrics{Name: name, Usage: usage})
	}
	out.ObjectMeta = objectMeta(pod, oldest)
	out.Timestamp, out.Window = metav1.NewTime(oldest.last.at), metav1.Duration{Duration: oldest.length()}
	return out, true
}

// objectMeta returns the metadata of a NodeMetrics or PodMetrics object. It has no resource
// version, because these objects are not stored and cannot be watched.
func objectMeta(object metav1.Object, w window) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: object.GetName(), Namespace: object.GetNamespace(), Labels: object.GetLabels(), CreationTimestamp: metav1.NewTime(w.last.at),
	}
}

// selected reports whether a list with these options contains the object.
func selected(options *internalversion.ListOptions, object metav1.Object) bool {
	if options == nil {
		return true
	}
	if s := options.LabelSelector; s != nil && !s.Matches(labels.Set(object.GetLabels())) {
		return false
	}
	s := options.FieldSelector
	return s == nil || s.Matches(fields.Set{"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace()})
}

// nodes and pods implement the two resources of the API for the generic API server.
type nodes struct {
	lister corelisters.NodeLister
	store  *store
	now    func() time.Time
}

type pods struct {
	lister corelisters.PodLister
	store  *store
	now    func() time.Time
}

var (
	_ rest.Scoper               = nodes{}
	_ rest.SingularNameProvider = nodes{}
	_ rest.Getter               = nodes{}
	_ rest.Lister               = nodes{}
	_ rest.Scoper               = pods{}
	_ rest.SingularNameProvider = pods{}
	_ rest.Getter               = pods{}
	_ rest.Lister               = pods{}
)

// New implements rest.Storage.
func (nodes) New() runtime.Object { return &metrics.NodeMetrics{} }

// NewList implements rest.Lister.
func (nodes) NewList() runtime.Object { return &metrics.NodeMetricsList{} }

// Destroy implements rest.Storage.
func (nodes) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (nodes) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider. The name is empty, because "node" is the
// singular name of the Node.
func (nodes) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (n nodes) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	node, err := n.lister.Get(name)
	if err == nil {
		if m, ok := nodeMetrics(node, n.store.of(name), n.now()); ok {
			return &m, nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("nodemetrics"), name)
}

// List implements rest.Lister.
func (n nodes) List(_ context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	all, err := n.lister.List(labels.Everything())
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	list := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for _, node := range all {
		if m, ok := nodeMetrics(node, n.store.of(node.Name), n.now()); ok && selected(options, node) {
			list.Items = append(list.Items, m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metrics.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// ConvertToTable implements rest.TableConvertor.
func (nodes) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	t := table()
	list := []metrics.NodeMetrics{}
	switch o := object.(type) {
	case *metrics.NodeMetrics:
		list = append(list, *o)
	case *metrics.NodeMetricsList:
		list = o.Items
	}
	for i := range list {
		addRow(t, &list[i], list[i].Name, list[i].Window.Duration, list[i].Usage)
	}
	return t, nil
}

// New implements rest.Storage.
func (pods) New() runtime.Object { return &metrics.PodMetrics{} }

// NewList implements rest.Lister.
func (pods) NewList() runtime.Object { return &metrics.PodMetricsList{} }

// Destroy implements rest.Storage.
func (pods) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (pods) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider. The name is empty, because "pod" is the
// singular name of the Pod.
func (pods) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (p pods) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pod, err := p.lister.Pods(request.NamespaceValue(ctx)).Get(name)
	if err == nil {
		if m, ok := podMetrics(pod, p.store.of(pod.Spec.NodeName), p.now()); ok {
			return &m, nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("podmetrics"), name)
}

// List implements rest.Lister.
func (p pods) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	all, err := p.lister.Pods(request.NamespaceValue(ctx)).List(labels.Everything())
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	list := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for _, pod := range all {
		if !selected(options, pod) {
			continue
		}
		if m, ok := podMetrics(pod, p.store.of(pod.Spec.NodeName), p.now()); ok {
			list.Items = append(list.Items, m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metrics.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// ConvertToTable implements rest.TableConvertor. The row of a pod shows the sum of its containers.
func (pods) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	t := table()
	list := []metrics.PodMetrics{}
	switch o := object.(type) {
	case *metrics.PodMetrics:
		list = append(list, *o)
	case *metrics.PodMetricsList:
		list = o.Items
	}
	for i := range list {
		sum := corev1.ResourceList{}
		for _, c := range list[i].Containers {
			for name, amount := range c.Usage {
				total := sum[name]
				total.Add(amount)
				sum[name] = total
			}
		}
		addRow(t, &list[i], list[i].Name, list[i].Window.Duration, sum)
	}
	return t, nil
}

// table returns an empty table with the columns of `kubectl get nodemetrics` and `kubectl get
// podmetrics`.
func table() *metav1.Table {
	return &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "name of the node or pod"},
		{Name: "CPU", Type: "string", Format: "quantity", Description: "cores used on average in the window"},
		{Name: "Memory", Type: "string", Format: "quantity", Description: "working set at the window's end"},
		{Name: "Window", Type: "string", Format: "duration", Description: "between the two samples"},
	}}
}

func addRow(t *metav1.Table, object runtime.Object, name string, window time.Duration, usage corev1.ResourceList) {
	t.Rows = append(t.Rows, metav1.TableRow{
		Cells:  []any{name, usage.Cpu().String(), usage.Memory().String(), window.String()},
		Object: runtime.RawExtension{Object: object},
	})
}
