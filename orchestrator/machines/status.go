package machines

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// health is the status of a machine for the condition Ready: True if its Node is ready and its own
// checks pass.
type health struct {
	status          metav1.ConditionStatus
	reason, message string
}

// health returns the health of a machine, from its Node and from the status of its OrlopMachine.
func (m *machine) health() health {
	if m.joining() {
		return health{metav1.ConditionFalse, clusterv1.MachineNodeDoesNotExistReason, "the machine has not joined the cluster yet"}
	}
	if m.node == nil {
		return health{metav1.ConditionFalse, clusterv1.MachineNodeDeletedReason, "the Node does not exist; if the machine was removed, delete its Machine"}
	}
	if c := nodeReady(m.node); c.Status != corev1.ConditionTrue {
		return health{metav1.ConditionStatus(c.Status), clusterv1.MachineNodeNotReadyReason, c.Message}
	}
	if m.own == nil {
		return health{metav1.ConditionUnknown, clusterv1.MachineReadyUnknownReason, "the OrlopMachine does not exist yet"}
	}
	if d := m.own.Status.Drain; d != nil && slices.Contains(emptyPhases, nodespec.DrainPhase(d.Phase)) {
		return health{metav1.ConditionFalse, reasonDraining, "the machine evicts its pods before its " + d.Operation}
	}
	c := meta.FindStatusCondition(m.own.Status.Conditions, machineapi.ConditionReady)
	if c == nil {
		return health{metav1.ConditionUnknown, clusterv1.MachineReadyUnknownReason, "the machine has not reported its health: enable Cluster.spec.kubernetes.machineObjects in its configuration"}
	}
	if c.Status != metav1.ConditionTrue {
		return health{c.Status, c.Reason, c.Message}
	}
	return health{metav1.ConditionTrue, clusterv1.MachineReadyReason, ""}
}

// reasonDraining is the reason of the condition Ready of a machine that evicts its pods.
const reasonDraining = "Draining"

// emptyPhases are the phases of a drain in which the machine evicts its pods or has evicted them,
// and will be away soon.
var emptyPhases = []nodespec.DrainPhase{nodespec.PhaseRunning, nodespec.PhaseDrained, nodespec.PhaseIncomplete}

// nodeReady returns the condition Ready of a Node. If the Node has none, its status is Unknown.
func nodeReady(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "the kubelet has not reported yet"}
}

// readySince returns the time since which the health of the machine has its present status. It
// returns now if the Machine object does not have this status yet.
func (m *machine) readySince(now time.Time) time.Time {
	if m.object == nil {
		return now
	}
	c := meta.FindStatusCondition(m.object.Status.Conditions, clusterv1.MachineReadyCondition)
	if c == nil || c.Status != m.ready.status {
		return now
	}
	return c.LastTransitionTime.Time
}

// machineStatus adds a change that writes the status of a Machine if it differs. It does not change
// the conditions that other programs write.
func (s Snapshot) machineStatus(r *Result, m *machine) {
	if m.object == nil {
		return
	}
	object := m.object.DeepCopy()
	st := &object.Status
	st.ObservedGeneration = object.Generation
	st.Initialization = clusterv1.MachineInitializationStatus{InfrastructureProvisioned: new(true), BootstrapDataSecretCreated: new(true)}
	phase := clusterv1.MachinePhaseRunning
	switch {
	case object.DeletionTimestamp != nil:
		phase = clusterv1.MachinePhaseDeleting
	case m.joining():
		phase = clusterv1.MachinePhaseProvisioning
	case m.node == nil:
		phase = clusterv1.MachinePhaseUnknown
	case m.verdict.State == rollout.Updating:
		phase = clusterv1.MachinePhaseUpdating
	}
	if st.Phase != string(phase) {
		st.LastUpdated = metav1.NewTime(s.Now.Truncate(time.Second))
	}
	st.SetTypedPhase(phase)
	if m.node != nil {
		st.NodeRef = clusterv1.MachineNodeReference{Name: m.name}
		st.NodeInfo = m.node.Status.NodeInfo.DeepCopy()
		st.Addresses = nil
		for _, a := range m.node.Status.Addresses {
			st.Addresses = append(st.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineAddressType(a.Type), Address: a.Address})
		}
	}
	for _, c := range m.conditions() {
		s.setCondition(&st.Conditions, object.Generation, c)
	}
	s.repairConditions(m, &st.Conditions, object.Generation)
	s.resetGates(m, &st.Conditions, object.Generation)
	if !equality.Semantic.DeepEqual(object.Status, m.object.Status) {
		r.Changes = append(r.Changes, Change{Status, object})
	}
}

// conditions returns the conditions of a Machine that this package writes.
func (m *machine) conditions() []metav1.Condition {
	node := metav1.Condition{Type: clusterv1.MachineNodeReadyCondition, Status: metav1.ConditionFalse, Reason: clusterv1.MachineNodeDeletedReason, Message: m.ready.message}
	if m.node != nil {
		c := nodeReady(m.node)
		node.Status, node.Reason, node.Message = metav1.ConditionStatus(c.Status), clusterv1.MachineNodeReadyReason, ""
		if c.Status != corev1.ConditionTrue {
			node.Reason, node.Message = clusterv1.MachineNodeNotReadyReason, c.Message
		}
	}
	infrastructure := metav1.Condition{Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineInfrastructureReadyReason}
	if m.own == nil {
		infrastructure.Status, infrastructure.Reason = metav1.ConditionFalse, clusterv1.MachineInfrastructureDoesNotExistReason
	}
	nodeHealthy := node
	nodeHealthy.Type = clusterv1.MachineNodeHealthyCondition
	if node.Status == metav1.ConditionTrue {
		nodeHealthy.Reason = clusterv1.MachineNodeHealthyReason
	}
	all := []metav1.Condition{
		{Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineBootstrapDataSecretProvidedReason},
		infrastructure, node, nodeHealthy,
	}
	for _, kind := range []string{clusterv1.MachineReadyCondition, clusterv1.MachineAvailableCondition} {
		all = append(all, metav1.Condition{Type: kind, Status: m.ready.status, Reason: m.ready.reason, Message: m.ready.message})
	}
	return append(all, m.upToDate(), m.updating())
}

// upToDate returns the condition UpToDate: True if the machine runs its wanted release. The reason
// is the state of the machine in the rollout.
func (m *machine) upToDate() metav1.Condition {
	c := metav1.Condition{Type: clusterv1.MachineUpToDateCondition, Status: metav1.ConditionFalse, Reason: string(m.verdict.State), Message: m.verdict.Message}
	switch {
	case m.problem != "":
		c.Reason, c.Message = "ReleaseUnknown", m.problem
	case m.verdict.State == rollout.UpToDate:
		c.Status = metav1.ConditionTrue
	case m.verdict.State == rollout.Updating || m.verdict.State == rollout.Permitted:
		if why := m.refusal(); why != "" {
			c.Message = fmt.Sprintf("the machine has refused release %s, and tries again: %s", m.want.Version, why)
		}
	}
	return c
}

// refusal returns why the machine has rejected the permitted release, for example because a
// disruption budget protects its pods. It returns "" if the machine has not rejected the release.
func (m *machine) refusal() string {
	if m.own == nil {
		return ""
	}
	if c := meta.FindStatusCondition(m.own.Status.Conditions, machineapi.ConditionUpdating); c != nil && c.Status == metav1.ConditionFalse && c.Reason == machineapi.ReasonRefused {
		return c.Message
	}
	return ""
}

// updating returns the condition Updating: True if the machine changes its release, or has a permit
// for that.
func (m *machine) updating() metav1.Condition {
	c := metav1.Condition{Type: clusterv1.MachineUpdatingCondition, Status: metav1.ConditionFalse, Reason: clusterv1.MachineNotUpdatingReason}
	switch m.verdict.State {
	case rollout.Updating, rollout.Permitted:
		c.Status, c.Reason = metav1.ConditionTrue, clusterv1.MachineInPlaceUpdatingReason
		c.Message = fmt.Sprintf("release %s", m.want.Version)
	case rollout.RolledBack:
		c.Reason = clusterv1.MachineInPlaceUpdateFailedReason
		if m.own != nil && m.own.Status.Failed != nil {
			c.Message = fmt.Sprintf("release %s was rolled back: %s", m.own.Status.Failed.Release.Version, m.own.Status.Failed.Reason)
		}
	}
	return c
}

// setCondition adds or replaces a condition. generation is the observed generation of the object.
func (s Snapshot) setCondition(all *[]metav1.Condition, generation int64, c metav1.Condition) {
	c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(s.Now.Truncate(time.Second))
	c.Reason = cmp.Or(c.Reason, "Unknown")
	meta.SetStatusCondition(all, c)
}
