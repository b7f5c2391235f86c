package claims

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// TestPower scales a MachineDeployment of machines with power switches from three machines to one,
// then to two and to four. Removed machines are switched off. For each missing machine, one host is
// switched on. While its new key waits for an approval, no further host is switched on for it.
func TestPower(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "host.labels.rack == '7'")
	for n := 1; n <= 3; n++ {
		h := w.host(n, true)
		h.Labels, h.Spec.Power = map[string]string{"rack": "7"}, &machineapi.MachinePower{Secret: fmt.Sprint("power", n)}
	}
	w.deployment("workers", 3)
	w.settleDown()
	if got := w.machinesOf(); len(got) != 3 || len(w.hosts) != 3 {
		t.Fatalf("%v, %v", got, w.hosts)
	}
	for _, own := range w.own {
		if own.Spec.Power == nil || !strings.HasPrefix(own.Spec.Power.Secret, "power") {
			t.Errorf("%s has no power switch", own.Name)
		}
	}
	phases := func() (all []string) {
		for _, h := range w.hosts {
			all = append(all, string(hosts.Operation(h).Phase))
		}
		slices.Sort(all)
		return all
	}
	scale := func(n int32) *metav1.Condition {
		t.Helper()
		w.deployments["workers"].Spec.Replicas = &n
		w.settleDown()
		return meta.FindStatusCondition(w.deployments["workers"].Status.Conditions, clusterv1.MachineDeploymentScalingUpCondition)
	}
	if scale(1); !slices.Equal(phases(), []string{"", "Off", "Off"}) || len(w.members) != 1 || len(w.machines) != 1 {
		t.Fatalf("%v, %v", phases(), w.members)
	}
	if c := scale(2); c.Reason != reasonPowering || !strings.Contains(c.Message, "1 that match are not approved; 1 of them are switched on for this set") || !slices.Equal(phases(), []string{"", "Off", "Reported"}) {
		t.Fatalf("%+v, %v", c, phases())
	}
	for _, h := range w.hosts {
		if h.Spec.Claim == nil && waits(h) {
			h.Spec.Approval = &machineapi.HostApproval{Fingerprint: h.Spec.Fingerprint}
		}
	}
	if c := scale(2); c.Reason != reasonSatisfied || len(w.members) != 2 || !slices.Equal(phases(), []string{"", "", "Off"}) {
		t.Fatalf("%+v, %v", c, phases())
	}
	// The set lacks two machines, and only one host is left, which is off.
	if c := scale(4); c.Reason != reasonNoHost || !strings.Contains(c.Message, "2 more approved OrlopHosts") || !strings.Contains(c.Message, "1 of them are switched on") {
		t.Fatalf("%+v, %v", c, phases())
	}
}

// TestReturn checks when a host becomes free again after its set is scaled to zero: after the
// machine has left the cluster, and before the finalizer of its Machine is removed. The host of a
// machine that has never got its configuration retains its approval.
func TestReturn(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "")
	h := w.host(1, true)
	h.Spec.Power = &machineapi.MachinePower{Secret: "power"}
	w.deployment("workers", 1)
	w.settleDown()
	w.deployments["workers"].Spec.Replicas = new(int32(0))
	var r Result
	for range 4 {
		r = w.pass()
		w.now = w.now.Add(settle)
	}
	if h = w.hosts[h.Name]; len(r.List.Removals) != 1 || h.Spec.Claim == nil || h.Spec.Standby != nil {
		t.Fatalf("the host is released while its machine is a member: %+v, %+v", r.List, h.Spec)
	}
	w.machined(r.List, all)
	r = w.pass()
	if h = w.hosts[h.Name]; !r.Decides || h.Spec.Claim != nil || h.Spec.Approval != nil || hosts.Operation(h).Phase != standby.SwitchOff || len(w.machines) != 1 {
		t.Fatalf("%+v, %v", h.Spec, r.Changes)
	}
	if w.pass(); len(w.machines) != 0 {
		t.Errorf("the Machine exists after its host is free again: %v", w.machines)
	}

	w = newWorld(t)
	w.template("workers", "")
	h = w.host(1, true)
	h.Spec.Power = &machineapi.MachinePower{Secret: "power"}
	w.deployment("workers", 1)
	for range 6 {
		w.pass()
	}
	w.deployments["workers"].Spec.Replicas = new(int32(0))
	for range 6 { // machined does not admit the machine
		w.pass()
		w.now = w.now.Add(settle)
	}
	if h = w.hosts[h.Name]; len(w.machines) != 0 || h.Spec.Claim != nil || !h.Approved() || h.Spec.Standby != nil {
		t.Errorf("%+v", h.Spec)
	}
}

// TestLate checks that a set with one missing machine switches on one host. If this host does not
// report in time, the set switches on another host instead and does not need the late host any
// more.
func TestLate(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "")
	for n := 1; n <= 2; n++ {
		h := w.host(n, false)
		h.Spec.Power, h.Spec.Standby = &machineapi.MachinePower{Secret: "power"}, hosts.Standby(standby.Operation{Phase: standby.Off, Since: w.now})
		w.waits(h.Name, false)
	}
	w.deployment("workers", 1)
	orders := func() (n int) {
		for range 4 {
			w.pass()
		}
		for _, h := range w.hosts {
			if hosts.Operation(h).Phase == standby.SwitchOn {
				n++
			}
		}
		return n
	}
	if n := orders(); n != 1 {
		t.Errorf("%d hosts are switched on for one missing machine, want 1", n)
	}
	w.now = w.now.Add(standby.Patience + time.Second)
	if n := orders(); n != 1 {
		t.Errorf("%d hosts are switched on after the first host is late, want 1", n)
	}
	var surplus int
	for _, h := range w.hosts {
		if hosts.Operation(h).Phase == standby.Surplus {
			surplus++
		}
	}
	if surplus != 1 {
		t.Errorf("%d hosts are not needed any more, want 1, which is the late host", surplus)
	}
}

// TestSurplus checks that a host that was switched on for a set is not needed any more (Surplus) if
// another host satisfies the set, or if the set is deleted. A set that needs a machine again can
// take such a host.
func TestSurplus(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "")
	h := w.host(1, false)
	h.Spec.Power, h.Spec.Standby = &machineapi.MachinePower{Secret: "power"}, hosts.Standby(standby.Operation{Phase: standby.Off, Since: w.now, Unconfirmed: true})
	w.waits(h.Name, false)
	w.deployment("workers", 1)
	phase := func(want standby.Operation) {
		t.Helper()
		for range 5 {
			w.pass()
		}
		got := hosts.Operation(w.hosts[h.Name])
		if got.Since = (time.Time{}); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
	phase(standby.Operation{Phase: standby.SwitchOn, For: "workers", Unconfirmed: true})
	w.host(2, true) // another machine waits with an approval
	phase(standby.Operation{Phase: standby.Surplus, Unconfirmed: true})
	if got := w.machinesOf(); len(got) != 1 {
		t.Fatalf("%v", got)
	}
	w.deployments["workers"].Spec.Replicas = new(int32(2))
	phase(standby.Operation{Phase: standby.SwitchOn, For: "workers", Unconfirmed: true})
	w.hosts[h.Name].Spec.Standby = hosts.Standby(standby.Operation{Phase: standby.Reported, For: "workers"})
	w.waits(h.Name, true) // the machine has reported and is not approved
	w.deployments["workers"].Spec.Replicas = new(int32(1))
	phase(standby.Operation{Phase: standby.Surplus})
	w.deployments["workers"].Spec.Replicas = new(int32(2))
	phase(standby.Operation{Phase: standby.Reported, For: "workers"})
	delete(w.deployments, "workers")
	delete(w.sets, "workers")
	phase(standby.Operation{Phase: standby.Surplus})
}

// TestErasure checks that a returned machine is switched off only if its template demands that the
// machine erases itself. If the machine was lost before its removal, its erasure is unconfirmed. A
// host that may be the same machine as a member of the cluster (InUse) is not switched on.
func TestErasure(t *testing.T) {
	for _, c := range []struct {
		template claim.Signed
		lost     bool
		want     standby.Operation
	}{
		{signed, false, standby.Operation{Phase: standby.SwitchOff}},
		{signed, true, standby.Operation{Phase: standby.SwitchOff, Unconfirmed: true}},
		{keeps, false, standby.Operation{Phase: standby.Unerased}},
	} {
		w := newWorld(t)
		w.template("workers", "")
		w.templates["workers"].Spec.Template.Spec.Documents, w.templates["workers"].Spec.Template.Spec.Signature = string(c.template.Documents), string(c.template.Signature)
		h := w.host(1, true)
		h.Spec.Power = &machineapi.MachinePower{Secret: "power"}
		w.deployment("workers", 1)
		w.settleDown()
		if c.lost {
			for _, m := range w.machines {
				meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: clusterv1.MachineReadyCondition, Status: metav1.ConditionUnknown, Reason: "x", LastTransitionTime: metav1.NewTime(w.now)})
			}
		}
		w.now = w.now.Add(time.Minute)
		w.deployments["workers"].Spec.Replicas = new(int32(0))
		for range 6 {
			r := w.pass()
			if len(r.List.Removals) > 0 {
				w.machined(r.List, all)
			}
			w.now = w.now.Add(settle)
		}
		got := hosts.Operation(w.hosts[h.Name])
		if got.Since = (time.Time{}); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
	w := newWorld(t)
	w.template("workers", "")
	h := w.host(1, false)
	h.Spec.Power, h.Spec.Standby = &machineapi.MachinePower{Secret: "power"}, hosts.Standby(standby.Operation{Phase: standby.Off, Since: w.now})
	h.Status.Conditions = []metav1.Condition{{Type: machineapi.ConditionWaiting, Status: metav1.ConditionFalse, Reason: "InUse"}}
	w.deployment("workers", 1)
	for range 5 {
		w.pass()
	}
	if o := hosts.Operation(w.hosts[h.Name]); o.Phase != standby.Off {
		t.Errorf("a host that may be a member of the cluster is switched on: %+v", o)
	}
}
