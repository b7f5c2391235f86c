package netpolicy

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestWatch checks that input returns an error until the component has its rights and all lists,
// and that the watcher then signals each change that affects the table.
func TestWatch(t *testing.T) {
	documents, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	w := worldOf(t, 1, string(documents))
	var objects []runtime.Object
	for name, ranges := range w.Ranges {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, r := range ranges {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, r.String())
		}
		objects = append(objects, n)
	}
	for _, p := range w.Pods {
		objects = append(objects, p)
	}
	for _, n := range w.Namespaces {
		objects = append(objects, n)
	}
	for _, p := range w.Policies {
		objects = append(objects, p)
	}
	api := fake.NewClientset(objects...)
	refused := make(chan struct{})
	api.PrependReactor("list", "networkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-refused:
			return false, nil, nil
		default:
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "networkpolicies"}, "", nil)
		}
	})
	spec := nodespec.Spec{Node: nodespec.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Network: nodespec.Network{Encapsulation: "wireguard", PodCIDRs: w.Cluster}}
	rights := make(chan struct{})
	env := component.Env{Spec: spec, Nodes: component.NodesOf(t.Context(), api), Rights: func(context.Context) error {
		<-rights
		return nil
	}}
	f, err := watch(t.Context(), api, env)
	must(t, err)
	if _, err := f.input(); err == nil || !strings.Contains(err.Error(), "waiting for the first lists") {
		t.Errorf("the input without rights has the error %v, want waiting", err)
	}
	close(rights)
	wait(t, f, "the error of a list is reported", func() bool {
		_, err := f.input()
		return err != nil && strings.Contains(err.Error(), "networkpolicies is forbidden")
	})
	close(refused)
	want := compiled(t, w).String()
	wait(t, f, "the input has all objects", func() bool {
		got, err := f.input()
		return err == nil && compiled(t, got).String() == want
	})
	pod := w.Pods[2].DeepCopy()
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.12"}}
	_, err = api.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	wait(t, f, "the input has the address of the pod", func() bool {
		got, err := f.input()
		return err == nil && strings.Contains(compiled(t, got).String(), "10.244.1.12")
	})
	must(t, api.NetworkingV1().NetworkPolicies("shop").Delete(t.Context(), "nothing", metav1.DeleteOptions{}))
	wait(t, f, "the input does not have the deleted policy", func() bool {
		got, err := f.input()
		return err == nil && len(got.Policies) == 1
	})
}

// wait waits, for a minute at most, until the function reached returns true. It calls this function
// after each signal of the watcher. The text what describes the expected state in the failure
// message.
func wait(t *testing.T, f *watcher, what string, reached func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !reached() {
		select {
		case <-f.changed:
		case <-deadline:
			_, err := f.input()
			t.Fatalf("%s: not true after a minute; the error of the input is %v", what, err)
		}
	}
}
