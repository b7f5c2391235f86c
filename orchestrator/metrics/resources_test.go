package metrics

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/metrics/pkg/apis/metrics"
)

// half returns a sample of a container or node that uses half a core, at this number of seconds
// after the start of the test.
func half(seconds int) sample {
	return sample{at: at(seconds), cpu: 1 + float64(seconds)/2, memory: 1 << 20}
}

// site returns the resources of a cluster with three nodes. Node "one" also reports the pod
// bank/vault, which is on node "two", and node "silent" reports nothing. Pod "new" has a container
// with a single sample, so its usage is unknown.
func site(t *testing.T) (nodes, pods) {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	machines := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, name := range []string{"two", "one", "silent"} {
		if err := machines.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": name}}}); err != nil {
			t.Fatal(err)
		}
	}
	b := &store{}
	pod := func(namespace, name, node string) {
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
		object.Spec.NodeName = node
		if err := index.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	pod("shop", "web-2", "one")
	pod("shop", "web-1", "one")
	pod("shop", "new", "one")
	pod("bank", "vault", "two")
	in := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	for _, s := range []int{0, 10} {
		one := map[types.NamespacedName]map[string]sample{
			in("shop", "web-1"): {"app": half(s), "log": half(s)}, in("shop", "web-2"): {"app": half(s)},
			in("bank", "vault"): {"liar": half(s)},
			in("shop", "new"):   {"app": half(s)},
		}
		if s > 0 {
			one[in("shop", "new")]["late"] = half(s)
		}
		b.record("one", report{node: half(s), pods: one})
		b.record("two", report{node: half(s)})
	}
	now := func() time.Time { return at(11) }
	return nodes{corelisters.NewNodeLister(machines), b, now}, pods{corelisters.NewPodLister(index), b, now}
}

func TestNodes(t *testing.T) {
	n, _ := site(t)
	ctx := context.Background()
	for _, c := range []struct {
		options *internalversion.ListOptions
		want    []string
	}{
		{nil, []string{"one", "two"}},
		{&internalversion.ListOptions{}, []string{"one", "two"}},
		{&internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"kind": "two"})}, []string{"two"}},
		{&internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "one")}, []string{"one"}},
	} {
		object, err := n.List(ctx, c.options)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range object.(*metrics.NodeMetricsList).Items {
			got = append(got, m.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.options, got, c.want)
		}
	}
	object, err := n.Get(ctx, "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	m := object.(*metrics.NodeMetrics)
	if m.Usage.Cpu().String() != "500m" || m.Usage.Memory().String() != "1Mi" || m.Window.Duration != 10*time.Second ||
		!m.Timestamp.Time.Equal(at(10)) || m.Labels["kind"] != "one" {
		t.Errorf("%+v", m)
	}
	for _, name := range []string{"silent", "missing"} {
		if _, err := n.Get(ctx, name, nil); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want 404", name, err)
		}
	}
}

func TestPods(t *testing.T) {
	_, p := site(t)
	shop := request.WithNamespace(context.Background(), "shop")
	for _, c := range []struct {
		what    string
		ctx     context.Context
		options *internalversion.ListOptions
		want    []string
	}{
		{"one namespace; the usage of pod new is unknown", shop, nil, []string{"web-1", "web-2"}},
		{"all namespaces; the report about bank/vault from another node is ignored", context.Background(), nil, []string{"web-1", "web-2"}},
		{"by label", shop, &internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"app": "web-2"})}, []string{"web-2"}},
		{"by namespace", context.Background(), &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "bank")}, nil},
	} {
		object, err := p.List(c.ctx, c.options)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range object.(*metrics.PodMetricsList).Items {
			got = append(got, m.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	object, err := p.Get(shop, "web-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := object.(*metrics.PodMetrics); len(m.Containers) != 2 || m.Containers[0].Name != "app" || m.Containers[1].Name != "log" {
		t.Errorf("%+v", m)
	}
	for _, name := range []string{"new", "missing"} {
		if _, err := p.Get(shop, name, nil); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want 404", name, err)
		}
	}
	table, err := p.ConvertToTable(shop, object, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []any{"web-1", "1", "2Mi", "10s"}; len(table.Rows) != 1 || !slices.Equal(table.Rows[0].Cells, want) {
		t.Errorf("%+v, want %v", table.Rows, want)
	}
}
