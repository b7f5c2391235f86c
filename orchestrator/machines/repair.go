package machines

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// care is the state of a machine with respect to its MachineHealthCheck and its repair.
type care struct {
	check   string // name of its MachineHealthCheck; empty: no check selects the machine
	stopped string // why the check permits no repair at present, or empty
	noLimit bool   // the check states no maximum of unhealthy machines
	// reason and problem state why the machine is unhealthy. They are empty if it is healthy.
	reason, problem string
	reused          string // why its hardware is that of another machine now, or empty
	verdict         repair.Verdict
	fence           fence.Verdict
}

// startupTimeout is the default time after which a machine without a Node is unhealthy. A check can
// state another time.
const startupTimeout = 10 * time.Minute

// reasonWrongRule is the reason of the condition RemediationAllowed of a check with an invalid
// selector or trigger.
const reasonWrongRule = "WrongRule"

// repairs runs all checks and decides about the repair of all machines. It adds changes that write
// the orders and the status of the checks. If several checks select a machine, the first one by
// name applies.
func (s Snapshot) repairs(r *Result, all []*machine, maxUnavailable int) {
	checks := slices.SortedFunc(slices.Values(s.Checks), func(a, b *clusterv1.MachineHealthCheck) int { return strings.Compare(a.Name, b.Name) })
	for _, check := range checks {
		s.check(r, check, all)
	}
	s.fences(r, all)
	w := repair.World{Now: s.Now, MaxInFlight: maxUnavailable, Machines: make([]repair.Machine, 0, len(all))}
	for _, m := range all {
		in := repair.Machine{
			Name: m.name, ControlPlane: m.controlPlane, Checked: m.care.check != "", Unhealthy: m.care.problem, Stopped: m.care.stopped,
			Ready: m.ready.status == metav1.ConditionTrue, Since: m.readySince(s.Now), Busy: cmp.Or(m.care.fence.Busy(), m.cycles(), m.care.reused, s.busy(m)),
			Power: m.own != nil && m.own.Spec.Power != nil && m.name != s.Settings.Own && !m.care.noLimit, Silent: s.nodeOf(m).Silent,
		}
		if m.own != nil && m.own.Spec.Repair != nil {
			o := m.own.Spec.Repair
			in.Order = repair.Order{Step: repair.Step(o.Step), Attempt: int(o.Attempt), Given: o.Given.Time}
		}
		w.Machines = append(w.Machines, in)
	}
	for i, v := range repair.Decide(w) {
		m := all[i]
		m.care.verdict = v
		if v.State != repair.Ordered && v.State != repair.Cleared {
			continue
		}
		object := m.own.DeepCopy()
		if object.Spec.Repair = nil; v.State == repair.Ordered {
			object.Spec.Repair = &machineapi.RepairOrder{Step: string(v.Order.Step), Attempt: int32(v.Order.Attempt), Given: metav1.NewTime(v.Order.Given.Truncate(time.Second))}
			r.Permits = true
		}
		r.Changes = append(r.Changes, Change{Repair, object})
	}
}

// cycles returns the reason why the machine must not get a new order, or "". The reason is a power
// cycle that has begun: if another order replaced it, the machine would stay off.
func (m *machine) cycles() string {
	if o := powerCycle(m.own); o != nil && (o.Phase == string(fence.SwitchOff) || o.Phase == string(fence.SwitchOn)) {
		return "its power cycle runs"
	}
	return ""
}

// check sets care of each machine that the check selects, and adds a change that writes the status
// of the check if it differs.
func (s Snapshot) check(r *Result, check *clusterv1.MachineHealthCheck, all []*machine) {
	selector, err := metav1.LabelSelectorAsSelector(&check.Spec.Selector)
	var targets []*machine
	unhealthy := 0
	for _, m := range all {
		if err != nil || m.object == nil || m.care.check != "" || !selector.Matches(labels.Set(m.object.Labels)) {
			continue
		}
		targets = append(targets, m)
		m.care.check = check.Name
		if m.care.reason, m.care.problem = s.unhealthy(m, check.Spec.Checks); m.care.problem != "" {
			unhealthy++
		}
	}
	var trigger repair.Trigger
	if err == nil {
		most := ""
		if m := check.Spec.Remediation.TriggerIf.UnhealthyLessThanOrEqualTo; m != nil {
			most = m.String()
		}
		trigger, err = repair.ParseTrigger(most, check.Spec.Remediation.TriggerIf.UnhealthyInRange, len(targets))
	}
	allowed := metav1.Condition{Type: clusterv1.MachineHealthCheckRemediationAllowedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineHealthCheckRemediationAllowedReason}
	remaining := max(0, trigger.Max-unhealthy)
	if err != nil {
		allowed.Status, allowed.Reason, allowed.Message = metav1.ConditionFalse, reasonWrongRule, err.Error()
	} else if why := trigger.Stopped(unhealthy, len(targets)); why != "" && unhealthy > 0 {
		allowed.Status, allowed.Reason, allowed.Message = metav1.ConditionFalse, clusterv1.MachineHealthCheckTooManyUnhealthyReason, why
	}
	if allowed.Status == metav1.ConditionFalse {
		remaining = 0
	}
	var names []string
	for _, m := range targets {
		m.care.stopped, m.care.noLimit = allowed.Message, check.Spec.Remediation.TriggerIf.UnhealthyLessThanOrEqualTo == nil && check.Spec.Remediation.TriggerIf.UnhealthyInRange == ""
		names = append(names, m.name)
	}
	next := check.DeepCopy()
	st := &next.Status
	st.ExpectedMachines, st.CurrentHealthy, st.RemediationsAllowed = new(int32(len(targets))), new(int32(len(targets)-unhealthy)), new(int32(remaining))
	st.Targets, st.ObservedGeneration = names, next.Generation
	s.setCondition(&st.Conditions, next.Generation, allowed)
	if !equality.Semantic.DeepEqual(next.Status, check.Status) {
		r.Changes = append(r.Changes, Change{Status, next})
	}
}

// unhealthy returns why a machine is unhealthy by the rules of its check. It returns two empty
// texts if the machine is healthy. The texts do not change while the machine stays unhealthy.
func (s Snapshot) unhealthy(m *machine, checks clusterv1.MachineHealthCheckChecks) (reason, problem string) {
	lasts := func(since time.Time, seconds *int32) bool {
		return seconds == nil || s.Now.Sub(since) >= time.Duration(*seconds)*time.Second
	}
	if m.object.DeletionTimestamp != nil {
		return "", ""
	}
	if m.node == nil {
		timeout := int32(startupTimeout / time.Second)
		if checks.NodeStartupTimeoutSeconds != nil {
			timeout = *checks.NodeStartupTimeoutSeconds
		}
		// a timeout of 0 means that a missing Node never makes the machine unhealthy
		if timeout > 0 && lasts(m.readySince(s.Now), &timeout) {
			return clusterv1.MachineHealthCheckNodeDeletedReason, m.ready.message
		}
		return "", ""
	}
	for _, rule := range checks.UnhealthyNodeConditions {
		for _, c := range m.node.Status.Conditions {
			if c.Type == rule.Type && c.Status == rule.Status && lasts(c.LastTransitionTime.Time, rule.TimeoutSeconds) {
				return clusterv1.MachineHealthCheckUnhealthyNodeReason, fmt.Sprintf("condition %s of the Node is %s since %s", c.Type, c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339))
			}
		}
	}
	for _, rule := range checks.UnhealthyMachineConditions {
		c := meta.FindStatusCondition(m.object.Status.Conditions, rule.Type)
		if c != nil && c.Status == rule.Status && lasts(c.LastTransitionTime.Time, rule.TimeoutSeconds) {
			return clusterv1.MachineHealthCheckUnhealthyMachineReason, fmt.Sprintf("condition %s of the Machine is %s since %s", c.Type, c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339))
		}
	}
	return "", ""
}

// busy returns why a machine can get no order at present, or "" if it can get one.
func (s Snapshot) busy(m *machine) string {
	switch {
	case m.object == nil || m.own == nil || m.own.Status.Release == nil:
		return "the machine does not act on its object"
	case m.own.Spec.Power != nil && power.Away(m.node, s.Now) != "":
		return power.Away(m.node, s.Now)
	case m.verdict.State == rollout.Updating || m.verdict.State == rollout.Permitted:
		return "the machine changes its release"
	case m.own.Status.Drain != nil && slices.Contains(emptyPhases, nodespec.DrainPhase(m.own.Status.Drain.Phase)):
		return "the machine evicts its pods before its " + m.own.Status.Drain.Operation
	}
	return s.excluded(m)
}

// excluded returns the reason for which an operator has excluded a machine from repairs, or "".
func (s Snapshot) excluded(m *machine) string {
	has := func(name string) bool { _, there := m.object.Annotations[name]; return there }
	switch {
	case m.object == nil:
		return ""
	case ptr.Deref(s.Cluster.Spec.Paused, false):
		return "the Cluster is paused (spec.paused)"
	case has(clusterv1.PausedAnnotation) || has(clusterv1.MachineSkipRemediationAnnotation):
		return fmt.Sprintf("the Machine has the annotation %s or %s", clusterv1.PausedAnnotation, clusterv1.MachineSkipRemediationAnnotation)
	}
	return ""
}

// repairConditions sets the conditions of a Machine about its check, its repair and its power
// switch. It removes the conditions that do not apply.
func (s Snapshot) repairConditions(m *machine, conditions *[]metav1.Condition, generation int64) {
	s.fenceCondition(m, conditions, generation)
	if m.care.check == "" {
		meta.RemoveStatusCondition(conditions, clusterv1.MachineHealthCheckSucceededCondition)
		meta.RemoveStatusCondition(conditions, clusterv1.MachineOwnerRemediatedCondition)
		return
	}
	healthy := metav1.Condition{Type: clusterv1.MachineHealthCheckSucceededCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineHealthCheckSucceededReason}
	if m.care.problem != "" {
		healthy.Status, healthy.Reason, healthy.Message = metav1.ConditionFalse, m.care.reason, m.care.problem
	}
	s.setCondition(conditions, generation, healthy)
	v := m.care.verdict
	if v.State == repair.Healthy || v.State == repair.Cleared {
		meta.RemoveStatusCondition(conditions, clusterv1.MachineOwnerRemediatedCondition)
		return
	}
	repaired := metav1.Condition{Type: clusterv1.MachineOwnerRemediatedCondition, Status: metav1.ConditionFalse, Reason: string(v.State), Message: v.Message}
	if v.State == repair.Recovered {
		repaired.Status = metav1.ConditionTrue
	}
	if why := m.refusedRepair(); why != "" && v.State == repair.Repairing {
		repaired.Message += "; the machine has refused it: " + why
	}
	if f := m.care.fence; powerCycle(m.own) != nil && v.State == repair.Repairing && f.Message != "" {
		repaired.Message = machineapi.ConditionMessage(repaired.Message + "; " + f.Message)
	}
	s.setCondition(conditions, generation, repaired)
}

// refusedRepair returns why the machine has rejected its present order, or "" if it has not
// rejected the order.
func (m *machine) refusedRepair() string {
	if m.own == nil || m.own.Spec.Repair == nil || m.own.Status.Repair == nil || m.own.Status.Repair.Phase != machineapi.RepairRefused {
		return ""
	}
	if !m.own.Status.Repair.Given.Equal(&m.own.Spec.Repair.Given) {
		return ""
	}
	return m.own.Status.Repair.Message
}
