package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/vm"
)

func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func kinds(todo []action) []kind {
	var all []kind
	for _, a := range todo {
		all = append(all, a.kind)
	}
	slices.Sort(all)
	return all
}

// expect calls the method next at the time now, in seconds, and returns its actions. The test fails
// unless the kinds of the actions are want, and the time of the next call is later. A negative
// later is not checked.
func expect(t *testing.T, n *node, now, later float64, want ...kind) []action {
	t.Helper()
	todo, next := n.next(at(now))
	if got := kinds(todo); !slices.Equal(got, want) {
		t.Fatalf("at %v s the actions are %v, want %v", now, got, want)
	}
	if later >= 0 && !next.Equal(at(later)) {
		t.Fatalf("at %v s the time of the next call is %v s, want %v", now, next.Sub(at(0)).Seconds(), later)
	}
	return todo
}

// TestNodeReports checks the times of the reports of a node. The first report follows the
// registration immediately. The interval between the first and the second report differs between
// nodes. All later intervals are one minute. A failed report is repeated after a second.
func TestNodeReports(t *testing.T) {
	n := newNode(at(0), 0.25)
	a := expect(t, n, 0, -1, reportNode)[0]
	expect(t, n, 5, -1) // a report is in progress
	n.done(a, true, at(6))
	if n.ready {
		t.Error("the node is Ready before a report has succeeded")
	}
	expect(t, n, 6.5, 7)
	n.done(expect(t, n, 7, -1, reportNode)[0], false, at(8))
	if !n.ready {
		t.Error("the node is not Ready after a successful report")
	}
	expect(t, n, 8, 8+75-15) // the next report is due in 75 s, but the next call of next in 60 s
	n.done(expect(t, n, 83, -1, reportNode)[0], false, at(84))
	expect(t, n, 84, 144)
}

// TestPodLives checks the sequence of reports about a pod: its containers are being created, it
// runs, and, after its deletion, it has ended. Then the node deletes the object.
func TestPodLives(t *testing.T) {
	n := newNode(at(0), 0)
	n.done(expect(t, n, 0, -1, reportNode)[0], false, at(0))
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{UID: "1"}}
	n.see(p, at(1))
	n.done(expect(t, n, 1, -1, reportStarting)[0], false, at(1))
	n.see(p, at(1.2)) // the watch delivers the node's own report
	expect(t, n, 1.2, 2.5)
	a := expect(t, n, 2.5, -1, reportRunning)[0]
	n.done(a, true, at(3))
	expect(t, n, 3, 4)
	n.done(expect(t, n, 4, -1, reportRunning)[0], false, at(4))
	if n.count() != 1 {
		t.Errorf("%d pods run, want 1", n.count())
	}
	expect(t, n, 10, 60)
	p = p.DeepCopy()
	p.DeletionTimestamp = &meta.Time{Time: at(11)}
	n.see(p, at(11))
	if n.count() != 0 {
		t.Errorf("%d pods run after the deletion of the pod, want none", n.count())
	}
	expect(t, n, 11, 11.5)
	n.see(p, at(11.2)) // a further event does not postpone the end of the pod
	n.done(expect(t, n, 11.5, -1, reportEnded)[0], false, at(12))
	n.done(expect(t, n, 12, -1, removePod)[0], false, at(12))
	expect(t, n, 13, 60)
	n.gone(p.UID)
	n.done(action{removePod, p}, true, at(14)) // ignored, because the pod does not exist any more
	expect(t, n, 14, 60)
}

// TestPodDeletedMeanwhile checks that a pod ends if it is deleted while a report about it is in
// progress.
func TestPodDeletedMeanwhile(t *testing.T) {
	n := newNode(at(0), 0)
	n.done(expect(t, n, 0, -1, reportNode)[0], false, at(0))
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{UID: "1"}}
	n.see(p, at(1))
	a := expect(t, n, 1, -1, reportStarting)[0]
	p = p.DeepCopy()
	p.DeletionTimestamp = &meta.Time{Time: at(1.1)}
	n.see(p, at(1.1))
	expect(t, n, 1.7, 60) // the report of the end waits for the earlier report
	n.done(a, false, at(2))
	expect(t, n, 2, -1, reportEnded)
}

// TestPodPatch checks the phase, the condition Ready and the state of the container in the patch of
// each report about a pod.
func TestPodPatch(t *testing.T) {
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{UID: "a-1"}, Spec: core.PodSpec{Containers: []core.Container{{Name: "c", Image: "i"}}}}
	for what, want := range map[kind]struct {
		phase core.PodPhase
		ready core.ConditionStatus
		state string
	}{
		reportStarting: {core.PodPending, core.ConditionFalse, "waiting"},
		reportRunning:  {core.PodRunning, core.ConditionTrue, "running"},
		reportEnded:    {core.PodSucceeded, core.ConditionFalse, "terminated"},
	} {
		text, err := podPatch(p, what, at(0))
		if err != nil {
			t.Fatal(err)
		}
		var got core.Pod
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		state := got.Status.ContainerStatuses[0].State
		is := map[string]bool{"waiting": state.Waiting != nil, "running": state.Running != nil, "terminated": state.Terminated != nil}
		if got.UID != p.UID || got.Status.Phase != want.phase || !is[want.state] || len(got.Status.ContainerStatuses) != 1 {
			t.Errorf("action %v: the UID, the phase or the container status is wrong: %s", what, text)
		}
		for _, c := range got.Status.Conditions {
			if c.Type == core.PodReady && c.Status != want.ready {
				t.Errorf("action %v: the condition Ready is wrong: %s", what, c.Status)
			}
		}
	}
}

// TestFleet checks that a node is registered, has a Lease and reports Ready. It also checks that
// the node reports its pod as running and removes the deleted pod.
func TestFleet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	living, stop := context.WithCancel(ctx)
	api := fake.NewClientset()
	f := New(living, nil, vm.Clock{})
	f.client = func(string) (kubernetes.Interface, error) { return api, nil }
	defer f.Wait()
	defer stop()
	if err := f.Grow(ctx, 1, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() error {
		if s := f.Stats(); s.Nodes != 1 || s.Ready != 1 {
			return fmt.Errorf("the fleet is %+v, want one Node that is Ready", s)
		}
		_, err := api.CoordinationV1().Leases(core.NamespaceNodeLease).Get(ctx, Name(0), meta.GetOptions{})
		return err
	})
	pods := api.CoreV1().Pods("default")
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "p", Namespace: "default", UID: types.UID("1")}, Spec: core.PodSpec{NodeName: Name(0), Containers: []core.Container{{Name: "c"}}}}
	if _, err := pods.Create(ctx, p, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() error {
		got, err := pods.Get(ctx, "p", meta.GetOptions{})
		if err == nil && got.Status.Phase != core.PodRunning {
			err = fmt.Errorf("the pod is %s", got.Status.Phase)
		}
		return err
	})
	eventually(ctx, t, func() error {
		if s := f.Stats(); s.Pods != 1 {
			return fmt.Errorf("the fleet is %+v, want one pod", s)
		}
		return nil
	})
	got, err := pods.Get(ctx, "p", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got.DeletionTimestamp = &meta.Time{Time: time.Now()}
	if _, err := pods.Update(ctx, got, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() error {
		if _, err := pods.Get(ctx, "p", meta.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod still exists: %v", err)
		}
		if s := f.Stats(); s.Pods != 0 {
			return fmt.Errorf("the fleet is %+v, want no pod", s)
		}
		return nil
	})
}

func eventually(ctx context.Context, t *testing.T, check func() error) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}
