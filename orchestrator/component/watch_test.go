package component

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/cell"
)

// TestReconciler checks that the first pass runs after the initial list, so it has all objects, and
// that a pass follows a change of the zone. Before that, an update changes only the resource
// version, which the function Same treats as equal.
func TestReconciler(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	node := func(version, zone string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: version, Labels: map[string]string{"zone": zone}}}
	}
	client := fake.NewClientset(node("1", "x"))
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	zone := func(o any) string { return o.(*corev1.Node).Labels["zone"] }
	passes := make(chan string, 16)
	r := Reconciler{
		Changed: cell.NewSignal(), RetryInterval: time.Millisecond, Factories: []Factory{factory},
		Watched: []Watched{{Informer: informer, IgnoreDeletes: true, Same: func(before, now any) bool { return zone(before) == zone(now) }}},
		Pass: func(context.Context) (string, error) {
			detail := ""
			for _, o := range informer.GetStore().List() {
				detail += fmt.Sprintf("%s in %s", o.(*corev1.Node).Name, zone(o))
			}
			return detail, nil
		},
		Report: func(detail string) { passes <- detail },
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-passes:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("no pass with %q", want)
		}
	}
	wait("a in x")
	for _, n := range []*corev1.Node{node("2", "x"), node("3", "y")} {
		if _, err := client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wait("a in y")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNodes runs two reconcilers with a shared informer: one for Node "a", one for all Nodes. It
// checks that both together cause at most one list and one watch, that the informer removes unused
// fields from the Nodes, and that the informer still works after the first reconciler has ended. A
// reconciler that starts after the end of the informer ends without an error.
func TestNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	node := func(name, zone string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
			Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"i"}}}},
		}
	}
	client := fake.NewClientset(node("a", "x"), node("b", "x"))
	nodes := NodesOf(ctx, client)
	informer, err := nodes.Informer()
	if err != nil {
		t.Fatal(err)
	}
	start := func(ctx context.Context, name string) (<-chan string, <-chan error) {
		details, ended := make(chan string, 16), make(chan error, 1)
		r := Reconciler{
			Changed: cell.NewSignal(), RetryInterval: time.Millisecond, Factories: []Factory{nodes}, Watched: []Watched{{Informer: informer, Name: name}},
			Pass: func(context.Context) (string, error) {
				detail := name
				for _, n := range Objects[*corev1.Node](informer) {
					if len(n.ManagedFields) > 0 || len(n.Status.Images) > 0 {
						t.Errorf("Node %s has fields that the informer should remove", n.Name)
					}
					if name == "" || n.Name == name {
						detail += " " + n.Labels["zone"]
					}
				}
				return detail, nil
			},
			Report: func(detail string) { details <- detail },
		}
		go func() { ended <- r.Run(ctx) }()
		return details, ended
	}
	wait := func(details <-chan string, want string) {
		t.Helper()
		select {
		case got := <-details:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("no pass with %q", want)
		}
	}
	brief, stop := context.WithCancel(ctx)
	own, ownEnded := start(brief, "a")
	wait(own, "a x")
	all, _ := start(ctx, "")
	wait(all, " x x")
	update := func(n *corev1.Node) {
		t.Helper()
		if _, err := client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(node("a", "y"))
	wait(own, "a y")
	stop()
	if err := <-ownEnded; err != nil {
		t.Error(err)
	}
	wanted := regexp.MustCompile("^ (y z|z y)$")
	update(node("b", "z"))
	for detail := ""; !wanted.MatchString(detail); {
		select {
		case detail = <-all:
		case <-ctx.Done():
			t.Fatalf("the second reconciler reports %q", detail)
		}
	}
	cancel()
	for !informer.IsStopped() {
		runtime.Gosched()
	}
	late := Reconciler{
		Changed: cell.NewSignal(), Factories: []Factory{nodes}, Watched: []Watched{{Informer: informer}},
		Pass: func(context.Context) (string, error) { return "", nil },
	}
	if err := late.Run(ctx); err != nil {
		t.Errorf("a reconciler that starts after the end of the informer: %v", err)
	}
	requests := map[string]int{}
	for _, a := range client.Actions() {
		requests[a.GetVerb()]++
	}
	if requests["list"]+requests["watch"] > 2 {
		t.Errorf("requests %v, want at most one list and one watch", requests)
	}
}

func TestTrimmed(t *testing.T) {
	all := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": ""}, Annotations: map[string]string{"a": "1", "b": "2"},
	}}
	got := fmt.Sprint(Trimmed(all, "a", "missing"))
	want := fmt.Sprint(metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Annotations: map[string]string{"a": "1"}})
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
