package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// server is an API server with Node "a" and the pods of this node. The test can make the server
// unavailable, and protect pods by disruption budgets.
type server struct {
	*fake.Clientset
	mu        sync.Mutex
	away      bool
	protected map[string]bool // pods with a budget that forbids their eviction
	reports   []string
}

func newServer(pods ...string) *server {
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}}
	for _, name := range pods {
		objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "a"}})
	}
	s := &server{Clientset: fake.NewClientset(objects...), protected: map[string]bool{}}
	s.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		eviction, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		s.mu.Lock()
		protected := s.protected[eviction.Name]
		s.mu.Unlock()
		if protected {
			return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "no",
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget keep needs 1 healthy pods and has 1 currently"}}},
			}}
		}
		return true, nil, s.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), eviction.Namespace, eviction.Name)
	})
	s.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.away, nil, errors.New("connection refused")
	})
	return s
}

func (s *server) set(away bool, protected ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.protected = away, map[string]bool{}
	for _, name := range protected {
		s.protected[name] = true
	}
}

// report records the progress of a drain.
func (s *server) report(p nodespec.DrainProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, fmt.Sprintf("%d evicted, %d left: %s", p.Evicted, p.Left, p.Remaining()))
}

// start starts a drain and returns a function that waits for its result.
func (s *server) start(ctx context.Context, o nodespec.DrainRequest) (result func() (nodespec.DrainResult, error)) {
	type answer struct {
		out nodespec.DrainResult
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := Drain(ctx, s, "a", o, s.report)
		done <- answer{out, err}
	}()
	return func() (nodespec.DrainResult, error) {
		a := <-done
		return a.out, a.err
	}
}

// node returns the stored Node, also while the server is away.
func (s *server) node(t *testing.T) *corev1.Node {
	t.Helper()
	object, err := s.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", "a")
	if err != nil {
		t.Fatal(err)
	}
	return object.(*corev1.Node)
}

// shown describes a Node: whether it is cordoned ("cordoned" or "open"), and the conditions that
// this package sets.
func shown(n *corev1.Node) string {
	all := []string{"open"}
	if n.Spec.Unschedulable {
		all[0] = "cordoned"
	}
	for _, kind := range managed {
		if c := condition(n, kind); c != nil {
			all = append(all, fmt.Sprintf("%s=%s", kind, c.Status))
		}
	}
	return strings.Join(all, " ")
}

// TestLostServer checks a drain whose API server is unavailable for longer than the timeout of a
// request. While the server is unavailable, the drain reports the problem. After that, the drain
// continues where it was.
func TestLostServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer("one", "two")
		s.set(false, "two")
		result := s.start(t.Context(), nodespec.DrainRequest{Operation: "reboot", By: "dora", Timeout: 10 * time.Minute, Refuse: true})
		time.Sleep(5 * time.Second)
		if got, want := shown(s.node(t)), "cordoned MaintenancePlanned=True DrainInProgress=True"; got != want {
			t.Errorf("before the loss: %s", got)
		}
		s.set(true, "two")
		time.Sleep(3 * time.Minute)
		s.set(false)
		out, err := result()
		if err != nil || out.Refused || out.Evicted != 2 || out.Remaining() != "" {
			t.Errorf("%+v, %v", out, err)
		}
		if got, want := shown(s.node(t)), "cordoned MaintenancePlanned=True Drained=True"; got != want {
			t.Errorf("at the end: %s", got)
		}
		blocked := "pod n/two: must stay: The disruption budget keep needs 1 healthy pods and has 1 currently"
		want := []string{
			"1 evicted, 2 left: " + blocked + "; pod n/one: still ending",
			"1 evicted, 1 left: " + blocked,
			"1 evicted, 1 left: " + blocked + "; cannot read the node: connection refused",
			"2 evicted, 1 left: pod n/two: still ending",
			"2 evicted, 0 left: ",
		}
		if got := strings.Join(s.reports, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("reports:\n%s", got)
		}
	})
}

// TestLostServerAtTheEnd checks a drain that respects budgets and has no API server at its
// deadline. The drain is rejected, but it cannot undo its own changes of the Node. The keeper of
// the node, which is the component that maintains the conditions of the Node, does this when the
// server is available again.
func TestLostServerAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer("one")
		s.set(false, "one")
		stop := startKeeper(t, s)
		defer stop()
		result := s.start(t.Context(), nodespec.DrainRequest{Operation: "upgrade", By: "dora", Timeout: time.Minute, Refuse: true})
		time.Sleep(30 * time.Second)
		s.set(true)
		out, err := result()
		if err == nil || !out.Refused || !strings.Contains(out.Remaining(), "connection refused") {
			t.Errorf("%+v, %v", out, err)
		}
		if got := shown(s.node(t)); got != "cordoned MaintenancePlanned=True DrainInProgress=True" {
			t.Errorf("while the server is away: %s", got)
		}
		time.Sleep(time.Hour)
		s.set(false)
		time.Sleep(period)
		synctest.Wait()
		if got := shown(s.node(t)); got != "open" {
			t.Errorf("an hour later: %s", got)
		}
	})
}

// TestLostDrain checks that the keeper of a node undoes a drain whose process, or control-plane
// machine, was lost. The keeper does not undo a drain that still runs. If an operator cordoned the
// Node before the drain, the Node stays cordoned.
func TestLostDrain(t *testing.T) {
	for name, cordoned := range map[string]bool{"schedulable before the drain": false, "cordoned by an operator": true} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer("one")
			s.set(false, "one")
			if cordoned {
				if err := patchNode(t.Context(), s, "a", map[string]any{"spec": map[string]any{"unschedulable": true}}); err != nil {
					t.Fatal(err)
				}
			}
			stop := startKeeper(t, s)
			defer stop()
			n, err := getNode(t.Context(), s, "a")
			if err != nil {
				t.Fatal(err)
			}
			before := shown(n)
			ctx, kill := context.WithCancel(t.Context())
			result := s.start(ctx, nodespec.DrainRequest{Operation: "removal", By: "dora", Timeout: time.Hour})
			time.Sleep(30 * time.Minute)
			if got := shown(s.node(t)); got != "cordoned MaintenancePlanned=True DrainInProgress=True" {
				t.Errorf("%s: while the drain runs: %s", name, got)
			}
			s.set(true)
			kill()
			if _, err := result(); err == nil {
				t.Errorf("%s: a killed drain returns no error", name)
			}
			s.set(false, "one")
			time.Sleep(drainLife + maxSkew + period)
			synctest.Wait()
			if got := shown(s.node(t)); got != before {
				t.Errorf("%s: after the loss of the drain: %s, want %s", name, got, before)
			}
			if len(s.node(t).Annotations) > 0 {
				t.Errorf("%s: the Node still has the annotations %v", name, s.node(t).Annotations)
			}
		})
	}
}
