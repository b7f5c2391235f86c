package machines

import (
	"fmt"
	"slices"

	"golang.org/x/mod/semver"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// conditionRollingOut is the condition of an OrlopCluster that is True while a machine does not run
// its wanted release.
const conditionRollingOut = "RollingOut"

// group contains the numbers of machines of one role.
type group struct {
	total, ready, upToDate int32
	// the first machine that is not ready or not up to date, with the reason
	notReady, behind string
	versions         []clusterv1.StatusVersion
}

// count returns the group of the control-plane machines or of the workers. versions contains the
// number of machines of each Kubernetes version, the oldest version first.
func count(all []*machine, controlPlane bool) group {
	var g group
	versions := map[string]int32{}
	for _, m := range all {
		if m.controlPlane != controlPlane {
			continue
		}
		g.total++
		if m.node != nil {
			versions[m.node.Status.NodeInfo.KubeletVersion]++
		}
		if m.ready.status == metav1.ConditionTrue {
			g.ready++
		} else if g.notReady == "" {
			g.notReady = fmt.Sprintf("machine %s: %s", m.name, m.ready.message)
		}
		if c := m.upToDate(); c.Status == metav1.ConditionTrue {
			g.upToDate++
		} else if g.behind == "" {
			g.behind = fmt.Sprintf("machine %s: %s", m.name, c.Message)
		}
	}
	for v, n := range versions {
		if v != "" {
			g.versions = append(g.versions, clusterv1.StatusVersion{Version: v, Replicas: n})
		}
	}
	slices.SortFunc(g.versions, func(a, b clusterv1.StatusVersion) int { return semver.Compare(a.Version, b.Version) })
	return g
}

// condition returns a condition of the type `kind`. It is True with the reason `reason` if counted
// is the number of all machines of the group. If counted is lower, it is False with the reason
// `otherwise` and the message `why`.
func (g group) condition(kind string, counted int32, reason, otherwise, why string) metav1.Condition {
	switch {
	case g.total == 0:
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: clusterv1.NoReplicasReason}
	case counted < g.total:
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: otherwise, Message: why}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason}
}

// clusterStatus adds changes that write the status of the Cluster, the OrlopCluster and the
// OrlopControlPlane, each only if it differs.
func (s Snapshot) clusterStatus(r *Result, all []*machine) {
	planes, workers := count(all, true), count(all, false)
	s.upstreamStatus(r, planes, workers)

	own := s.OrlopCluster.DeepCopy()
	own.Status.Initialization = &machineapi.Initialization{Provisioned: new(true)}
	own.Status.Machines, own.Status.UpToDate, own.Status.ObservedGeneration = int32(len(all)), planes.upToDate+workers.upToDate, own.Generation
	s.setCondition(&own.Status.Conditions, own.Generation, metav1.Condition{Type: machineapi.ConditionReady, Status: metav1.ConditionTrue, Reason: clusterv1.ReadyReason})
	s.setCondition(&own.Status.Conditions, own.Generation, rollingOut(all))
	if !equality.Semantic.DeepEqual(own.Status, s.OrlopCluster.Status) {
		r.Changes = append(r.Changes, Change{Status, own})
	}

	plane := s.ControlPlane.DeepCopy()
	plane.Status.Initialization = &controlplane.Initialization{ControlPlaneInitialized: new(true)}
	plane.Status.Replicas, plane.Status.ReadyReplicas, plane.Status.UpToDateReplicas = planes.total, planes.ready, planes.upToDate
	plane.Status.ObservedGeneration, plane.Status.Versions = plane.Generation, nil
	for _, v := range planes.versions {
		plane.Status.Versions = append(plane.Status.Versions, controlplane.Version{Version: v.Version, Replicas: v.Replicas})
	}
	s.setCondition(&plane.Status.Conditions, plane.Generation, planes.condition(clusterv1.AvailableCondition, planes.ready, clusterv1.AvailableReason, clusterv1.NotAvailableReason, planes.notReady))
	if !equality.Semantic.DeepEqual(plane.Status, s.ControlPlane.Status) {
		r.Changes = append(r.Changes, Change{Status, plane})
	}
}

// upstreamStatus adds a change that writes the status of the Cluster if it differs.
func (s Snapshot) upstreamStatus(r *Result, planes, workers group) {
	object := s.Cluster.DeepCopy()
	st := &object.Status
	st.ObservedGeneration = object.Generation
	st.SetTypedPhase(clusterv1.ClusterPhaseProvisioned)
	st.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: new(true), ControlPlaneInitialized: new(true)}
	st.ControlPlane = &clusterv1.ClusterControlPlaneStatus{
		DesiredReplicas: &planes.total, Replicas: &planes.total, UpToDateReplicas: &planes.upToDate,
		ReadyReplicas: &planes.ready, AvailableReplicas: &planes.ready, Versions: planes.versions,
	}
	st.Workers = &clusterv1.WorkersStatus{
		DesiredReplicas: &workers.total, Replicas: &workers.total, UpToDateReplicas: &workers.upToDate,
		ReadyReplicas: &workers.ready, AvailableReplicas: &workers.ready, Versions: workers.versions,
	}
	both := group{total: planes.total + workers.total, ready: planes.ready + workers.ready, notReady: planes.notReady}
	if both.notReady == "" {
		both.notReady = workers.notReady
	}
	for _, c := range []metav1.Condition{
		{Type: clusterv1.ClusterInfrastructureReadyCondition, Status: metav1.ConditionTrue, Reason: clusterv1.ClusterInfrastructureReadyReason},
		{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.ClusterControlPlaneInitializedReason},
		planes.condition(clusterv1.ClusterControlPlaneAvailableCondition, planes.ready, clusterv1.AvailableReason, clusterv1.NotAvailableReason, planes.notReady),
		workers.condition(clusterv1.ClusterWorkersAvailableCondition, workers.ready, clusterv1.AvailableReason, clusterv1.NotAvailableReason, workers.notReady),
		planes.condition(clusterv1.ClusterControlPlaneMachinesUpToDateCondition, planes.upToDate, clusterv1.UpToDateReason, clusterv1.NotUpToDateReason, planes.behind),
		workers.condition(clusterv1.ClusterWorkerMachinesUpToDateCondition, workers.upToDate, clusterv1.UpToDateReason, clusterv1.NotUpToDateReason, workers.behind),
		both.condition(clusterv1.ClusterAvailableCondition, both.ready, clusterv1.ClusterAvailableReason, clusterv1.ClusterNotAvailableReason, both.notReady),
	} {
		s.setCondition(&st.Conditions, object.Generation, c)
	}
	if !equality.Semantic.DeepEqual(object.Status, s.Cluster.Status) {
		r.Changes = append(r.Changes, Change{Status, object})
	}
}

// rollingOut returns the condition RollingOut. If machines do not run their wanted releases, its
// reason is the state that is first in importance.
func rollingOut(all []*machine) metav1.Condition {
	c := metav1.Condition{Type: conditionRollingOut, Status: metav1.ConditionFalse, Reason: string(rollout.UpToDate)}
	best := len(importance)
	for _, m := range all {
		if m.problem != "" {
			unknown := m.upToDate()
			return metav1.Condition{Type: conditionRollingOut, Status: metav1.ConditionTrue, Reason: unknown.Reason, Message: fmt.Sprintf("machine %s: %s", m.name, unknown.Message)}
		}
		rank := slices.Index(importance, m.verdict.State)
		if rank < 0 || rank >= best {
			continue
		}
		best = rank
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, string(m.verdict.State), fmt.Sprintf("machine %s: %s", m.name, m.upToDate().Message)
	}
	if c.Reason == string(rollout.RolledBack) {
		c.Reason = string(rollout.Halted)
	}
	return c
}

// importance is the order of states for the reason of the condition RollingOut. Each machine also
// has its own state in its condition UpToDate.
var importance = []rollout.State{
	rollout.RolledBack, rollout.Updating, rollout.Permitted, rollout.Paused, rollout.OutsideWindow, rollout.WaitingForGate,
	rollout.Canary, rollout.NoQuorum, rollout.Unavailable, rollout.WaitingForTurn, rollout.Halted,
}
