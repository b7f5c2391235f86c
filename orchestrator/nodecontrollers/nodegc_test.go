package nodecontrollers

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestDeleteNodes checks that the Nodes of a request are deleted with their pods. A Node that its
// machine registers again after the deletion is deleted again. A missing Node is not an error. A
// Node that was created after the request belongs to a new machine, and is not deleted.
func TestDeleteNodes(t *testing.T) {
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}}
	}
	asked := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := node("w4") // the Node of another machine with the name of the removed one
	later.CreationTimestamp = metav1.NewTime(asked.Add(time.Second))
	order := func(names ...string) nodespec.NodeGCRequest {
		return nodespec.NodeGCRequest{Names: names, MadeBefore: asked}
	}
	client := fake.NewClientset(node("w1"), node("w2"), node("m1"), later, pod("a", "w1"), pod("b", "w3"), pod("c", "m1"), pod("d", "w4"))
	// The fake client does not support field selectors.
	client.PrependReactor("list", "pods", func(a core.Action) (bool, runtime.Object, error) {
		all, err := client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "")
		if err != nil {
			return true, nil, err
		}
		list := all.(*corev1.PodList)
		of := a.(core.ListAction).GetListRestrictions().Fields
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !of.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) })
		return true, list, nil
	})
	client.PrependReactor("delete", "pods", func(a core.Action) (bool, runtime.Object, error) {
		o := a.(core.DeleteAction)
		if d := o.GetDeleteOptions(); *d.GracePeriodSeconds != 0 || string(*d.Preconditions.UID) != o.GetName() {
			t.Errorf("pod %s is deleted with %+v", o.GetName(), d)
		}
		return false, nil, nil
	})
	recreated := 1
	client.PrependReactor("delete", "nodes", func(a core.Action) (bool, runtime.Object, error) {
		if name := a.(core.DeleteAction).GetName(); name == "w1" && recreated > 0 {
			recreated--
			// the Node still exists, as if its machine had registered it again
			return true, nil, nil
		}
		return false, nil, nil
	})
	there, err := deleteNodes(t.Context(), client, order("w1", "w2", "w3", "w4"), time.Millisecond)
	if err != nil || !slices.Equal(there, []string{"w1", "w2"}) {
		t.Errorf("%v, %v", there, err)
	}
	left, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 2 || left.Items[0].Name != "m1" || left.Items[1].Name != "w4" {
		t.Errorf("%v, %v", left, err)
	}
	for _, name := range []string{"c", "d"} {
		if _, err := client.CoreV1().Pods("n").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if _, err := client.CoreV1().Pods("n").Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("pod %s of a deleted Node: %v, want not found", name, err)
		}
	}
	if there, err := deleteNodes(t.Context(), client, order("w1"), time.Hour); err != nil || len(there) != 0 {
		t.Errorf("%v, %v", there, err)
	}

	// The creation time of this Node is in the future by the clock of this machine, so the Node may
	// belong to the removed machine or to a new one. The Node stays, and the error names it.
	ahead := node("w5")
	ahead.CreationTimestamp = metav1.NewTime(time.Now().Add(24 * time.Hour))
	if _, err := client.CoreV1().Nodes().Create(t.Context(), ahead, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if there, err := deleteNodes(t.Context(), client, order("w5"), time.Millisecond); err == nil || !strings.Contains(err.Error(), "its machine cannot be determined") || len(there) != 0 {
		t.Errorf("%v, %v", there, err)
	}
}
