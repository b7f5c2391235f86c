package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

func quiet(nodespec.DrainProgress) {}

// TestRound checks that a pod that cannot be evicted does not prevent the eviction of other pods,
// and that each round cordons the node. With Delete, a round deletes the pods whose eviction was
// rejected.
func TestRound(t *testing.T) {
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}, Spec: corev1.PodSpec{NodeName: "a"}}
	}
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		pod("budget", "one"), pod("budgets", "two"), pod("ending", "three"), pod("free", "four"))
	var evicted, deleted []string
	api.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		one := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		evicted = append(evicted, one.Name)
		refusal := func(code int32, reason metav1.StatusReason, cause metav1.CauseType) error {
			return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "no",
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: cause, Message: "it must not"}}}}}
		}
		switch one.Namespace {
		case "budget":
			return true, nil, refusal(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, policyv1.DisruptionBudgetCause)
		case "budgets":
			return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "This pod has more than one PodDisruptionBudget"}}
		case "ending":
			return true, nil, refusal(http.StatusForbidden, metav1.StatusReasonForbidden, corev1.NamespaceTerminatingCause)
		}
		return true, nil, nil
	})
	api.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		deleted = append(deleted, a.(clienttesting.DeleteAction).GetName())
		return true, nil, nil
	})
	checkCordoned := func() {
		t.Helper()
		node, err := api.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || !node.Spec.Unschedulable {
			t.Errorf("the node is not cordoned: %v", err)
		}
	}

	d := drain{api: api, node: "a", evicted: map[types.UID]bool{}, report: quiet}
	shown := func(pods []nodespec.DrainPod) (all []string) {
		for _, p := range pods {
			all = append(all, p.String())
		}
		return all
	}
	left, forbidden, err := d.round(t.Context())
	if err == nil || !strings.Contains(err.Error(), "pod budgets/two: cannot evict: This pod has more than one") {
		t.Errorf("a round with a failed eviction: %v", err)
	}
	if want := []string{
		"pod budget/one: must stay: it must not", "pod budgets/two: cannot evict: This pod has more than one PodDisruptionBudget",
		"pod ending/three: still ending", "pod free/four: still ending",
	}; !slices.Equal(shown(left), want) || !forbidden {
		t.Errorf("pods that are left: %q", shown(left))
	}
	if !slices.Equal(evicted, []string{"one", "two", "three", "four"}) || len(deleted) > 0 {
		t.Errorf("evicted: %v, deleted: %v", evicted, deleted)
	}
	checkCordoned()
	// A restart of process "node" makes the node schedulable.
	if err := Undo(t.Context(), api, "a"); err != nil {
		t.Fatal(err)
	}
	d.order = nodespec.DrainRequest{Delete: true}
	if left, forbidden, err = d.round(t.Context()); err != nil || len(left) != 4 || forbidden {
		t.Errorf("a round with Delete: pods that are left: %v, %v", left, err)
	}
	if !slices.Equal(deleted, []string{"one", "two"}) {
		t.Errorf("deleted: %v", deleted)
	}
	checkCordoned()

	api.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if _, _, err := d.round(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot read the node: away") {
		t.Errorf("a round without an API server: %v", err)
	}
}

// TestNoNode checks that a drain, and its undo, succeed without a Node to cordon, as for a machine
// that was removed from the cluster.
func TestNoNode(t *testing.T) {
	api := fake.NewClientset()
	got, err := Drain(t.Context(), api, "a", nodespec.DrainRequest{Timeout: time.Minute}, quiet)
	if err != nil || got.Refused || got.Remaining() != "" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Drain(t.Context(), api, "a", nodespec.DrainRequest{Timeout: time.Minute, Undo: true}, quiet); err != nil {
		t.Error(err)
	}
}

// TestNoTime checks that a drain that respects budgets is rejected if the API server could not
// check the budgets: because the timeout ends before the first round, or because the server is too
// busy.
func TestNoTime(t *testing.T) {
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "p"}, Spec: corev1.PodSpec{NodeName: "a"}})
	got, err := Drain(t.Context(), api, "a", nodespec.DrainRequest{Timeout: time.Nanosecond, Refuse: true}, quiet)
	if err != nil || !got.Refused || !strings.Contains(got.Remaining(), "the timeout was too short") {
		t.Errorf("%+v, %v", got, err)
	}
	api.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTooManyRequests("busy", 1)
	})
	d := drain{api: api, node: "a", evicted: map[types.UID]bool{}}
	if left, forbidden, err := d.round(t.Context()); err != nil || !forbidden || len(left) != 1 || !strings.Contains(left[0].Message, "not evicted yet") {
		t.Errorf("%v, %t, %v", left, forbidden, err)
	}
}

// TestLongMessages checks that the result of a drain stays small if a webhook denies the evictions
// with a long text. machined retains only the last 256 KiB of an output, and cannot decode an
// incomplete result.
func TestLongMessages(t *testing.T) {
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	for i := range 2 * nodespec.MaxDrainPods {
		name := fmt.Sprint("p", i)
		objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "a"}})
	}
	api := fake.NewClientset(objects...)
	api.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("denied: " + strings.Repeat("é<", 100_000))
	})
	d := drain{api: api, node: "a", evicted: map[types.UID]bool{}}
	pods, _, failed := d.round(t.Context())
	now := d.progress(nodespec.DrainProgress{}, pods, failed)
	text, err := json.Marshal(nodespec.DrainResult{DrainProgress: now})
	if err != nil || len(text) > 256<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if now.Left != len(objects)-1 || len(now.Pods) != nodespec.MaxDrainPods || !strings.HasPrefix(now.Pods[0].Message, "denied: ") || !strings.Contains(now.Problem, "cannot evict: denied: ") {
		t.Errorf("%d left, %d listed, %.100s", now.Left, len(now.Pods), now.Problem)
	}
}

// TestUndo checks that the undo is repeated if the API server is unavailable for a short time, and
// that it returns an error after a longer outage.
func TestUndo(t *testing.T) {
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{drainedAnnotation: "true"}}, Spec: corev1.NodeSpec{Unschedulable: true}})
	away := 2
	api.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		away--
		return away >= 0, nil, errors.New("no answer")
	})
	if _, err := Drain(t.Context(), api, "a", nodespec.DrainRequest{Timeout: time.Minute, Undo: true}, quiet); err != nil {
		t.Error(err)
	}
	if node, err := api.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{}); err != nil || node.Spec.Unschedulable {
		t.Errorf("the node is not schedulable: %v", err)
	}
	away = 1 << 30
	if _, err := Drain(t.Context(), api, "a", nodespec.DrainRequest{Timeout: 2 * retryInterval, Undo: true}, quiet); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Error(err)
	}
}
