package early

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
)

// TestForgetNodes: Nodes that are there go, also one that is made anew at once, and none is an error that is not there.
func TestForgetNodes(t *testing.T) {
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	client := fake.NewClientset(node("w1"), node("w2"), node("m1"))
	anew := 1
	client.PrependReactor("delete", "nodes", func(a core.Action) (bool, runtime.Object, error) {
		if name := a.(core.DeleteAction).GetName(); name == "w1" && anew > 0 {
			anew--
			return true, nil, nil // it is there again
		}
		return false, nil, nil
	})
	there, err := forgetNodes(t.Context(), client, []string{"w1", "w2", "w3"}, time.Millisecond)
	if err != nil || !slices.Equal(there, []string{"w1", "w2"}) {
		t.Errorf("%v, %v", there, err)
	}
	left, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != "m1" {
		t.Errorf("%v, %v", left, err)
	}
	if there, err := forgetNodes(t.Context(), client, []string{"w1"}, time.Hour); err != nil || len(there) != 0 {
		t.Errorf("%v, %v", there, err)
	}
}
