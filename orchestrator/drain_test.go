package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/drain"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// drains drains a node with the identity of its kubelet, while upstream's controller maintains the
// status of the disruption budgets.
func drains(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, node string) {
	const namespace = "drained"
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAccount(ctx, t, admin, namespace)
	pods := admin.CoreV1().Pods(namespace)
	add := func(name, node string, phase corev1.PodPhase, change func(*corev1.Pod)) {
		t.Helper()
		p := plainPod(name)
		p.Spec.NodeName = node
		p.Labels = map[string]string{"app": name}
		if change != nil {
			change(p)
		}
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		modify(ctx, t, pods.Get, pods.UpdateStatus, name, func(p *corev1.Pod) {
			p.Status.Phase = phase
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		})
	}
	yes := true
	add("free", node, corev1.PodRunning, nil)
	add("guarded", node, corev1.PodRunning, nil)
	add("ended", node, corev1.PodSucceeded, nil)
	add("daemon", node, corev1.PodRunning, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "gone", UID: "1", Controller: &yes}}
		// The owner does not exist, so the garbage collector deletes the pod.
		p.Finalizers = []string{"orlop.dev/test"}
	})
	add("elsewhere", "another", corev1.PodRunning, nil)
	one := intstr.FromInt32(1)
	if _, err := admin.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "keep-one"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		budget, err := admin.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "keep-one", metav1.GetOptions{})
		return err == nil && budget.Status.CurrentHealthy == 1, nil
	})
	if err != nil {
		t.Fatalf("the status of the budget does not include its pod: %v", err)
	}

	// This loop acts in place of a kubelet: it completes the deletion of evicted pods.
	own := m.client(t, "system:node:"+node, "system:nodes")
	ending, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_ = wait.PollUntilContextCancel(ending, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			list, err := own.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
			if err != nil {
				return false, nil
			}
			for _, p := range list.Items {
				if p.DeletionTimestamp != nil {
					_ = own.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *metav1.NewDeleteOptions(0))
				}
			}
			return false, nil
		})
	}()
	checkPod := func(name string, want bool) {
		t.Helper()
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if (err == nil) != want {
			t.Errorf("pod %s: exists %v, want %v", name, err == nil, want)
		}
	}
	checkCordoned := func(want bool) {
		t.Helper()
		n, err := admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n.Spec.Unschedulable != want {
			t.Errorf("node is cordoned: %v, want %v", n.Spec.Unschedulable, want)
		}
	}
	// checkConditions also shows that the kubelet may write the conditions of its own Node.
	checkConditions := func(want ...corev1.NodeConditionType) {
		t.Helper()
		n, err := admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var have []corev1.NodeConditionType
		for _, c := range n.Status.Conditions {
			if strings.HasPrefix(c.Reason, "Orlop") && c.Status == corev1.ConditionTrue {
				have = append(have, c.Type)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("conditions %v, want %v", have, want)
		}
	}
	quiet := func(nodespec.DrainProgress) {}
	undo := func() {
		t.Helper()
		if err := drain.Undo(ctx, own, node); err != nil {
			t.Error(err)
		}
	}

	// The drain respects the budget, so it is rejected, and the node becomes schedulable again.
	// The pod without a budget has been evicted.
	done, err := drain.Drain(ctx, own, node, nodespec.DrainRequest{Timeout: 15 * time.Second, Refuse: true}, quiet)
	if err != nil || !done.Refused || done.Remaining() != "pod drained/guarded: must stay: The disruption budget keep-one needs 1 healthy pods and has 1 currently" || done.Pods[0].Budget != "keep-one" {
		t.Errorf("a drain that respects the budget: %+v, %v", done, err)
	}
	checkCordoned(false)
	checkPod("free", false)
	checkPod("guarded", true)

	// The drain does not respect the budget, and waits until its timeout.
	add("free", node, corev1.PodRunning, nil)
	done, err = drain.Drain(ctx, own, node, nodespec.DrainRequest{Timeout: 15 * time.Second}, quiet)
	if err != nil || done.Evicted != 1 || done.Left != 1 || !strings.HasPrefix(done.Remaining(), "pod drained/guarded: must stay") {
		t.Errorf("a drain until the timeout: %+v, %v", done, err)
	}
	checkCordoned(true)
	checkConditions(corev1.NodeMaintenancePlanned)
	checkPod("free", false)
	checkPod("guarded", true)
	if _, err := drain.Drain(ctx, own, node, nodespec.DrainRequest{Timeout: time.Minute, Undo: true}, quiet); err != nil {
		t.Error(err)
	}
	checkCordoned(false)
	checkConditions()

	// The drain overrides the budget. Pods of DaemonSets, ended pods and pods of other nodes
	// stay.
	done, err = drain.Drain(ctx, own, node, nodespec.DrainRequest{Timeout: time.Minute, Delete: true}, quiet)
	if err != nil || done.Evicted != 1 || done.Left != 0 {
		t.Errorf("a drain that overrides the budget: %+v, %v", done, err)
	}
	for name, want := range map[string]bool{"guarded": false, "ended": true, "daemon": true, "elsewhere": true} {
		checkPod(name, want)
	}
	checkConditions(corev1.NodeDrained, corev1.NodeMaintenancePlanned)
	undo()
	checkConditions()

	// An operator has cordoned the node, so it stays cordoned after the undo.
	if _, err := admin.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := drain.Drain(ctx, own, node, nodespec.DrainRequest{Timeout: time.Minute}, quiet); err != nil {
		t.Error(err)
	}
	undo()
	checkCordoned(true)

	// The Node does not exist, so the budgets cannot be checked.
	done, err = drain.Drain(ctx, own, "nobody", nodespec.DrainRequest{Timeout: 2 * time.Second, Refuse: true}, quiet)
	if err == nil || !done.Refused || !strings.Contains(done.Remaining(), "cannot read the node") {
		t.Errorf("a drain without a Node: %+v, %v", done, err)
	}
}

// TestDrainAfterWait drains another node while no API server is available at first. It checks that
// the time of this wait counts toward the timeout of the drain, because machined kills a drain that
// takes longer.
func TestDrainAfterWait(t *testing.T) {
	const outage, timeout = 2200 * time.Millisecond, 20 * time.Second
	d := dirs.In(t.TempDir())
	spec, err := json.Marshal(testSpec())
	if err != nil {
		t.Fatal(err)
	}
	write(t, d.Spec, spec)
	node, deadline := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "b"}}, time.Time{}
	account := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrap.DrainAccount}
	answers := map[string]any{
		"accounts/" + account.Name: &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: account},
		"/token": &authenticationv1.TokenRequest{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}, ObjectMeta: account,
			Spec:   authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))},
			Status: authenticationv1.TokenRequestStatus{Token: "t", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))},
		},
		"/nodes/b": node, "/nodes/b/status": node,
		"/pods": &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}},
	}
	start := time.Now()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || time.Since(start) < outage {
			http.Error(w, "not yet", http.StatusInternalServerError)
			return
		}
		if found := regexp.MustCompile(`, until ([^ "]+)"`).FindSubmatch(body); found != nil {
			// Without a time, the deadline is zero, and the test fails.
			deadline, _ = time.Parse(time.RFC3339, string(found[1]))
		}
		w.Header().Set("Content-Type", "application/json")
		for suffix, answer := range answers {
			if strings.HasSuffix(r.URL.Path, suffix) {
				_ = json.NewEncoder(w).Encode(answer) // the client reports an incomplete answer
			}
		}
	}))
	defer server.Close()
	write(t, component.KubeconfigPath(d.Controllers, nodecontrollers.Namespaces), []byte(`{"clusters": [{"name": "c", "cluster": {"server": "`+server.URL+`"}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`))
	out, err := drainNode(t.Context(), d, nodespec.DrainRequest{Node: "b", Operation: "removal", By: "dora", Timeout: timeout}, io.Discard)
	server.Close()
	if err != nil || out.Remaining() != "" {
		t.Errorf("%+v, %v", out, err)
	}
	// The annotation of the Node has the deadline with a resolution of one second.
	if took := deadline.Sub(start); took <= 0 || took >= timeout+time.Second {
		t.Errorf("the deadline of the drain is %v after its start, which is longer than its timeout, or not positive", took)
	}
}
