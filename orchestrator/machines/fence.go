package machines

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// powerCall is a request to the power switch of a machine.
type powerCall struct {
	machine string
	uuid    string // of the machine, in its Node; empty if there is no Node, or it has none
	action  fence.Action
}

// operates reports whether a fence or a power cycle runs. This pass then may operate the power
// switch.
func (s Snapshot) operates(own *machineapi.OrlopMachine) bool {
	return own.Spec.Fence != nil || s.cycleOf(own).Runs()
}

// needPower returns the machines with a fence or a power cycle that may begin, or that runs. The
// decisions about them depend on their power switches.
func (s Snapshot) needPower() (needed []*machineapi.OrlopMachine) {
	lost := map[string]bool{}
	if len(s.Checks) > 0 {
		for _, n := range s.Nodes {
			lost[n.Name] = nodeReady(n).Status == corev1.ConditionUnknown || power.NodeOf(n, nil, s.Now).Taint != ""
		}
	}
	for _, own := range s.Own {
		if lost[own.Name] || s.operates(own) {
			needed = append(needed, own)
		}
	}
	return needed
}

// powerCycle returns the order of a machine if its step is PowerCycle; nil otherwise.
func powerCycle(own *machineapi.OrlopMachine) *machineapi.RepairOrder {
	if own == nil || own.Spec.Repair == nil || own.Spec.Repair.Step != string(repair.PowerCycle) {
		return nil
	}
	return own.Spec.Repair
}

// fences decides about the power switches of all machines, and writes the phases and the taints.
// The caller has called repairs before, which finds the unhealthy machines. The changes of fences
// precede all other changes, because a decision about a taint is valid for seconds only. The
// removal of a taint precedes the write of the phase: if the removal fails, the next pass makes the
// same decision.
func (s Snapshot) fences(r *Result, all []*machine) {
	w := fence.World{Now: s.Now, Machines: make([]fence.Machine, 0, len(all))}
	var hardware map[string][]string
	if len(s.Power) > 0 { // otherwise nothing begins
		hardware = reporting(all)
	}
	for _, m := range all {
		m.care.reused = m.reused(hardware)
		w.Machines = append(w.Machines, s.fenceFacts(m))
	}
	var removals, changes []Change
	for i, v := range fence.Decide(w) {
		m, facts := all[i], w.Machines[i]
		m.care.fence = v
		if m.own == nil {
			continue
		}
		if v.Operation != facts.Operation {
			object := m.own.DeepCopy()
			object.Spec.Fence = fenceObject(v.Operation)
			changes = append(changes, Change{Fence, object})
		}
		if v.Cycle != facts.Cycle.Phase {
			object := m.own.DeepCopy()
			object.Spec.Repair.Phase = string(v.Cycle)
			changes = append(changes, Change{Repair, object})
		}
		if m.node != nil && v.Taint != facts.Taint {
			object := m.node.DeepCopy()
			object.Spec.Taints = power.Taints(m.node, v.Taint)
			if v.Taint == "" {
				removals = append(removals, Change{Taint, object})
			} else {
				changes = append(changes, Change{Taint, object})
			}
		}
		if v.Action == fence.Nothing {
			continue
		}
		uuid := ""
		if m.node != nil {
			uuid = m.node.Status.NodeInfo.SystemUUID
		}
		r.Calls = append(r.Calls, powerCall{m.name, uuid, v.Action})
		r.Permits = r.Permits || v.Action != fence.Read
	}
	r.Permits = r.Permits || len(removals)+len(changes) > 0
	r.Changes = slices.Concat(removals, changes, r.Changes)
}

// reporting maps the UUID of each hardware to the names of the Nodes that report at present.
func reporting(all []*machine) map[string][]string {
	names := map[string][]string{}
	for _, m := range all {
		if m.node != nil && m.node.Status.NodeInfo.SystemUUID != "" && power.NodeOf(m.node, nil, time.Time{}).Reports {
			uuid := strings.ToLower(m.node.Status.NodeInfo.SystemUUID)
			names[uuid] = append(names[uuid], m.name)
		}
	}
	return names
}

// reused describes another Node that has the same hardware now; "" if there is none. If there is
// such a Node, an operator has reinstalled the hardware under another name, and the power switch of
// this machine would switch off the other Node.
func (m *machine) reused(hardware map[string][]string) string {
	if m.node == nil {
		return ""
	}
	for _, name := range hardware[strings.ToLower(m.node.Status.NodeInfo.SystemUUID)] {
		if name != m.name {
			return fmt.Sprintf("Node %s reports from the same hardware: delete the Machine and the Node of the former name", name)
		}
	}
	return ""
}

// available reports whether a machine counts for the quorum of etcd while another machine is
// switched off.
func (s Snapshot) available(m *machine) bool {
	changes := m.verdict.State == rollout.Updating || m.verdict.State == rollout.Permitted
	return m.ready.status == metav1.ConditionTrue && !changes && power.Renewed(s.Leases[m.name], s.Now)
}

// fenceFacts returns the facts about a machine for package fence. Without facts from its power
// switch, no fence and no power cycle begins.
func (s Snapshot) fenceFacts(m *machine) fence.Machine {
	facts, read := s.Power[m.name]
	in := fence.Machine{
		Name: m.name, ControlPlane: m.controlPlane, Own: m.name == s.Settings.Own,
		Care: fence.Care{
			Checked: m.care.check != "", Unhealthy: m.care.problem, Available: s.available(m), Stopped: m.care.stopped, NoLimit: m.care.noLimit,
			Busy: cmp.Or(s.excluded(m), power.Away(m.node, s.Now), m.care.reused),
		},
		Node:   s.nodeOf(m),
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

// nodeOf returns the facts about the Node of a machine. The age of its Lease is the age at the time
// at which the Leases were read.
func (s Snapshot) nodeOf(m *machine) fence.Node {
	lease := s.Leases[m.name]
	if _, read := s.Power[m.name]; read && lease == nil {
		lease = &coordinationv1.Lease{} // it does not exist
	}
	return power.NodeOf(m.node, lease, cmp.Or(s.LeasesRead, s.Now))
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
	s.Power, s.Leases = map[string]power.Facts{}, nil
	if needed := s.needPower(); len(needed) > 0 {
		if err := c.readLeases(ctx, s); err != nil {
			return err
		}
		for _, own := range needed {
			s.Power[own.Name] = c.switches.Facts(ctx, own, own.Spec.Fence != nil)
		}
	}
	c.switches.Retain(s.Power)
	return nil
}

// readLeases reads the Leases of all kubelets.
func (c *controller) readLeases(ctx context.Context, s *Snapshot) (err error) {
	s.LeasesRead = c.now()
	s.Leases, err = c.switches.Leases(ctx)
	return err
}

// freshPower reads the Leases again, and the Nodes and the facts of the machines with a fence or a
// power cycle that runs, because the caches can be stale. s.Own was read from the API server
// before.
func (c *controller) freshPower(ctx context.Context, s *Snapshot) error {
	for _, own := range s.Own {
		if !s.operates(own) {
			// No fence of this machine runs. After a fence begins, the next pass reads the Node.
			continue
		}
		node, err := c.acts.nodes.CoreV1().Nodes().Get(ctx, own.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n *corev1.Node) bool { return n.Name == own.Name })
		if err == nil {
			s.Nodes = append(s.Nodes, node)
		}
		s.Power[own.Name] = c.switches.Facts(ctx, own, own.Spec.Fence != nil)
	}
	if len(s.Power) == 0 {
		return nil
	}
	return c.readLeases(ctx, s)
}
