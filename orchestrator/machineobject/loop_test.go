package machineobject

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// loop simulates a cluster of one machine: the controllers (package machines), the component of
// this package, and the state of the machine.
type loop struct {
	t *testing.T
	machines.Snapshot
	state     *api.ObjectState
	last      attempt
	requested []string // the versions that were requested from machined
}

// apply performs a change of the controllers, as the API server does.
func (l *loop) apply(c machines.Change) {
	object, err := meta.Accessor(c.Object)
	if err != nil {
		l.t.Fatal(err)
	}
	if c.Verb == machines.Create || c.Verb == machines.Permit {
		object.SetGeneration(object.GetGeneration() + 1)
		object.SetUID("u")
	}
	switch o := c.Object.(type) {
	case *clusterv1.Cluster:
		l.Cluster = o
	case *machineapi.OrlopCluster:
		l.OrlopCluster = o
	case *controlplane.OrlopControlPlane:
		l.ControlPlane = o
	case *clusterv1.Machine:
		l.Machines = []*clusterv1.Machine{o}
	case *machineapi.OrlopMachine:
		l.Own = []*machineapi.OrlopMachine{o}
	case *corev1.Node:
		l.Nodes = []*corev1.Node{o}
	default:
		l.t.Fatalf("%T: unknown object", o)
	}
}

// tick advances the clock by ten seconds, and performs all passes of the controllers and one of the
// component.
func (l *loop) tick() {
	l.t.Helper()
	l.Now = l.Now.Add(10 * time.Second)
	for passes := 0; ; passes++ {
		r, err := machines.Plan(l.Snapshot)
		if err != nil {
			l.t.Fatal(err)
		}
		if len(r.Changes) == 0 {
			break
		}
		if passes == 10 {
			l.t.Fatal("the passes of the controllers do not end")
		}
		for _, c := range r.Changes {
			l.apply(c)
		}
	}
	if len(l.Own) == 0 || l.state == nil {
		return
	}
	next, change := step(input{object: l.Own[0], state: l.state, last: l.last, now: l.Now})
	l.Own[0].Status = next
	if change != nil {
		l.requested = append(l.requested, change.Version)
		l.last = attempt{version: change.Version, ended: l.Now}
	}
}

// The method until calls tick until good returns true. After half an hour of simulated time, it
// fails the test with a message that names the event.
func (l *loop) until(event string, good func() bool) {
	l.t.Helper()
	for range 180 {
		if l.tick(); good() {
			return
		}
	}
	l.t.Fatalf("this did not happen within half an hour: %s; rollout: %s; requested %v; %+v", event, l.rollout(), l.requested, l.Own[0])
}

// The method want sets spec.release of the OrlopMachine to version, as an operator does.
func (l *loop) want(version string) {
	l.Own[0].Generation++
	l.Own[0].Spec.Release = &machineapi.ReleaseReference{Version: version, Image: "r/o@sha256:" + strings.Repeat("0", 64)}
}

// upgrade sets the running version and the upgrade status of the machine. In phase "written", the
// machine reboots, so its Node is not ready.
func (l *loop) upgrade(running, phase, from, to string) {
	l.state = &api.ObjectState{Version: running, Kubernetes: "v1.37.2", Upgrade: &api.UpgradeStatus{Phase: phase, From: from, To: to, Reason: "reason of " + phase}}
	if phase == "committed" || phase == "rolled back" {
		l.state.Upgrade.Ended = timestamppb.New(l.Now)
	}
	ready := corev1.ConditionTrue
	if phase == "written" {
		ready = corev1.ConditionFalse
	}
	l.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
}

// rollout returns the reason and the message of the condition RollingOut.
func (l *loop) rollout() string {
	for _, c := range l.OrlopCluster.Status.Conditions {
		if c.Type == "RollingOut" {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// lastAsked returns a function that reports whether machined has received exactly count requests,
// and the last one was for this version.
func (l *loop) lastAsked(version string, count int) func() bool {
	return func() bool { return len(l.requested) == count && l.requested[count-1] == version }
}

// TestSingleMachine simulates the steps of the story machines-single: a version that fails, an
// upgrade to another version, the rollback of this upgrade by an operator, and a second attempt
// with the version that failed.
func TestSingleMachine(t *testing.T) {
	l := &loop{t: t}
	l.Settings = machines.Settings{Name: "c", Host: "10.0.0.11", Port: 6443, Own: "node"}
	l.Now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	l.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node"}}}
	l.upgrade("1.0.0", "", "", "")
	upToDate := func() bool { return strings.HasPrefix(l.rollout(), "UpToDate") && l.Own[0].Spec.Permit == nil }
	l.until("the objects exist", func() bool { return len(l.Own) > 0 && l.Own[0].Status.Release != nil && upToDate() })

	l.want("2.0.0")
	l.until("request of 2.0.0", l.lastAsked("2.0.0", 1))
	l.upgrade("1.0.0", "writing", "1.0.0", "2.0.0")
	l.tick()
	l.upgrade("1.0.0", "written", "1.0.0", "2.0.0")
	l.tick()
	l.upgrade("1.0.0", "rolled back", "1.0.0", "2.0.0")
	l.tick()
	l.tick()
	if got := l.rollout(); got != "Halted: machine node: the machine has rolled back from release 2.0.0; set another release" {
		t.Errorf("after the rollback: %s", got)
	}
	for range 180 {
		l.tick()
	}
	if len(l.requested) != 1 || l.Own[0].Status.Failed == nil {
		t.Errorf("the failed release was requested again: %v, %+v", l.requested, l.Own[0].Status)
	}

	l.want("3.0.0")
	l.until("request of 3.0.0", l.lastAsked("3.0.0", 2))
	l.upgrade("3.0.0", "trial", "1.0.0", "3.0.0")
	l.tick()
	l.upgrade("3.0.0", "committed", "1.0.0", "3.0.0")
	l.until("commit of 3.0.0", upToDate)

	l.want("1.0.0")
	l.until("request of 1.0.0", l.lastAsked("1.0.0", 3))
	l.upgrade("1.0.0", "rolled back", "1.0.0", "3.0.0")
	l.until("end of the rollback to 1.0.0", upToDate)

	l.want("2.0.0")
	l.until("second request of 2.0.0", l.lastAsked("2.0.0", 4))
}
