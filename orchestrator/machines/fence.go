package machines

import (
	"cmp"
	"context"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// powerCall is a request to the power switch of a machine.
type powerCall struct {
	machine string
	uuid    string // of the machine, in its Node; empty if the Node has none
	action  fence.Action
}

// needsPower reports whether a decision depends on the power switch of a machine: a fence or a
// power cycle may begin, or runs.
func (s Snapshot) needsPower(own *machineapi.OrlopMachine) bool {
	if own.Spec.Fence != nil || s.cycleOf(own).Runs() {
		return true
	}
	n := named(s.Nodes, own.Name)
	return len(s.Checks) > 0 && n != nil && (nodeReady(n).Status == corev1.ConditionUnknown || power.NodeOf(n, nil, s.Now).Taint != "")
}

// powerCycle returns the order of a machine if its step is PowerCycle; nil otherwise.
func powerCycle(own *machineapi.OrlopMachine) *machineapi.RepairOrder {
	if own == nil || own.Spec.Repair == nil || own.Spec.Repair.Step != string(repair.PowerCycle) {
		return nil
	}
	return own.Spec.Repair
}

// fences decides about the power switches of all machines, and writes the phases and the taints.
// repairs has found the unhealthy machines before.
func (s Snapshot) fences(r *Result, all []*machine) {
	w := fence.World{Now: s.Now, Machines: make([]fence.Machine, 0, len(all))}
	for _, m := range all {
		w.Machines = append(w.Machines, s.fenceFacts(m))
	}
	for i, v := range fence.Decide(w) {
		m, facts := all[i], w.Machines[i]
		m.care.fence = v
		if m.own == nil {
			continue
		}
		if v.Operation != facts.Operation {
			object := m.own.DeepCopy()
			object.Spec.Fence = fenceObject(v.Operation)
			r.Changes = append(r.Changes, Change{Fence, object})
			r.Permits = true
		}
		if v.Cycle != facts.Cycle.Phase {
			object := m.own.DeepCopy()
			object.Spec.Repair.Phase = string(v.Cycle)
			r.Changes = append(r.Changes, Change{Repair, object})
			r.Permits = true
		}
		if m.node != nil && v.Taint != facts.Taint {
			object := m.node.DeepCopy()
			object.Spec.Taints = power.Taints(m.node, v.Taint)
			r.Changes = append(r.Changes, Change{Taint, object})
			r.Permits = true
		}
		if v.Action != fence.Nothing && m.node != nil {
			r.Calls = append(r.Calls, powerCall{m.name, m.node.Status.NodeInfo.SystemUUID, v.Action})
			r.Permits = r.Permits || v.Action != fence.Read
		}
	}
}

// fenceFacts are the facts about a machine. Without facts from its power switch, nothing begins.
func (s Snapshot) fenceFacts(m *machine) fence.Machine {
	facts, read := s.Power[m.name]
	in := fence.Machine{
		Name: m.name, ControlPlane: m.controlPlane, Own: m.name == s.Settings.Own,
		Care: fence.Care{
			Checked: m.care.check != "", Unhealthy: m.care.problem, Available: m.ready.status == metav1.ConditionTrue,
			Stopped: m.care.stopped, NoLimit: m.care.noLimit, Busy: cmp.Or(s.excluded(m), power.Away(m.node, s.Now)),
		},
		Node:   power.NodeOf(m.node, facts.Lease, s.Now),
		Switch: facts.Switch, Pods: facts.Pods,
	}
	if !read {
		in.Access = "the power switch was not read yet"
	}
	if m.own == nil {
		return in
	}
	if f := m.own.Spec.Fence; f != nil {
		in.Operation = fence.Operation{Phase: fence.Phase(f.Phase), Since: f.Since.Time, BootID: f.BootID, StayOff: f.StayOff}
	}
	switch {
	case !power.ByHand(m.node):
	case in.Operation.Phase == "":
		in.Busy = cmp.Or(in.Busy, "an operator has set the taint "+corev1.TaintNodeOutOfService)
	case in.Operation.Phase == fence.Release:
		in.Taint = in.Operation.BootID // the taint of the operator has the same effect
	}
	in.Cycle = s.cycleOf(m.own)
	return in
}

// cycleOf returns the step PowerCycle of a machine; the zero value if it has another step or none.
func (s Snapshot) cycleOf(own *machineapi.OrlopMachine) fence.Cycle {
	o := powerCycle(own)
	if o == nil {
		return fence.Cycle{}
	}
	order := repair.Order{Step: repair.PowerCycle, Attempt: int(o.Attempt), Given: o.Given.Time}
	return fence.Cycle{Given: o.Given.Time, Valid: order.Valid(s.Now), Phase: fence.Phase(o.Phase)}
}

// fenceObject is the stored form of a fence; nil if there is none.
func fenceObject(o fence.Operation) *machineapi.MachineFence {
	if o.Phase == "" {
		return nil
	}
	return &machineapi.MachineFence{
		Phase: string(o.Phase), Since: metav1.NewTime(o.Since.Truncate(time.Second)), BootID: o.BootID, StayOff: machineapi.ConditionMessage(o.StayOff),
	}
}

// fenceCondition sets condition Fenced of a Machine, or removes it if the machine needs no fence.
func (s Snapshot) fenceCondition(m *machine, conditions *[]metav1.Condition, generation int64) {
	v := m.care.fence
	if slices.Contains([]fence.State{"", fence.Idle, fence.Returned}, v.State) || v.State == fence.Cycling && !v.Off() {
		meta.RemoveStatusCondition(conditions, machineapi.ConditionFenced)
		return
	}
	c := metav1.Condition{Type: machineapi.ConditionFenced, Status: metav1.ConditionFalse, Reason: string(v.State), Message: machineapi.ConditionMessage(v.Message)}
	if v.Off() {
		c.Status = metav1.ConditionTrue
	}
	s.setCondition(conditions, generation, c)
}

// readPower reads the facts about the power switches on which a decision depends.
func (c *controller) readPower(ctx context.Context, s *Snapshot) error {
	s.Power = map[string]power.Facts{}
	needed := slices.DeleteFunc(slices.Clone(s.Own), func(own *machineapi.OrlopMachine) bool { return !s.needsPower(own) })
	if len(needed) > 0 {
		leases, err := c.switches.Leases(ctx)
		if err != nil {
			return err
		}
		for _, own := range needed {
			facts, err := c.switches.Facts(ctx, own, own.Spec.Fence != nil)
			if err != nil {
				return err
			}
			facts.Lease = cmp.Or(leases[own.Name], &coordinationv1.Lease{})
			s.Power[own.Name] = facts
		}
	}
	c.switches.Retain(s.Power)
	return nil
}
