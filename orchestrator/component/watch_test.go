package component

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/cell"
)

// TestReconciler checks that a pass follows each change that matters, and that the first pass knows
// all objects.
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
