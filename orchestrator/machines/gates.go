package machines

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// gateLabel is the label of the Jobs of gates. Its value is the name of the CronJob.
const gateLabel = "orlop.dev/gate"

// jobLife is the time, in seconds, for which a finished Job of a gate is retained. The CronJob can
// state another time.
const jobLife = 24 * 60 * 60

// decide sets the verdict of each machine and returns the missing Jobs of gates. It calls
// rollout.Decide twice if there is a step: the first decision has the name of the step, for which
// decide evaluates the gates, and the second uses the states of the gates.
func (s Snapshot) decide(w rollout.World, all []*machine) []*batchv1.Job {
	var jobs []*batchv1.Job
	for _, g := range s.OrlopCluster.Spec.Rollout.Gates {
		w.Policy.Gates = append(w.Policy.Gates, rollout.Gate{Name: cmp.Or(g.ConditionType, g.CronJob)})
	}
	d := rollout.Decide(w)
	if d.Step != "" {
		tested := testedBy(d, all)
		for i, g := range s.OrlopCluster.Spec.Rollout.Gates {
			gate := &w.Policy.Gates[i]
			gate.Step = d.Step
			if g.CronJob == "" {
				gate.State, gate.Message = conditionGate(g.ConditionType, tested)
				continue
			}
			var missing *batchv1.Job
			if gate.State, gate.Message, missing = s.jobGate(g.CronJob, d.Step, tested); missing != nil {
				jobs = append(jobs, missing)
			}
		}
		d = rollout.Decide(w)
	}
	for i, m := range all {
		m.verdict = d.Verdicts[i]
	}
	return jobs
}

// testedBy returns the machines that the gates of a decision test. If a control-plane machine waits
// for the gates, these are only the control-plane machines: a stolen worker must not delay the
// control plane by false reports.
func testedBy(d rollout.Decision, all []*machine) []*machine {
	var planes []*machine
	next := false
	for i, m := range all {
		if m.controlPlane {
			planes = append(planes, m)
			next = next || d.Verdicts[i].State == rollout.WaitingForGate
		}
	}
	if next {
		return planes
	}
	return all
}

// conditionGate returns the state of a gate that passes if the condition (kind) of every updated
// machine is True.
func conditionGate(kind string, all []*machine) (rollout.GateState, string) {
	pending := false
	for _, m := range all {
		if m.object == nil || m.want.Version == "" || m.want.Version != m.have() {
			continue
		}
		switch c := meta.FindStatusCondition(m.object.Status.Conditions, kind); {
		case c == nil || c.Status == metav1.ConditionUnknown:
			pending = true
		case c.Status == metav1.ConditionFalse:
			return rollout.GateFailed, fmt.Sprintf("machine %s: %s", m.name, cmp.Or(c.Message, c.Reason))
		}
	}
	if pending {
		return rollout.GatePending, ""
	}
	return rollout.GatePassed, ""
}

// jobGate returns the state of a gate that passes if a Job completes. If the Job does not exist,
// jobGate also returns the Job to create.
func (s Snapshot) jobGate(cronJob, step string, all []*machine) (rollout.GateState, string, *batchv1.Job) {
	name := jobName(cronJob, step, all)
	if job := named(s.Jobs, name); job != nil {
		state, message := s.jobState(job)
		return state, message, nil
	}
	// Only one Job of a gate runs at a time. Otherwise a machine that changes its report all the
	// time could cause any number of Jobs.
	if i := slices.IndexFunc(s.Jobs, func(j *batchv1.Job) bool { return j.Labels[gateLabel] == cronJob && !ended(j) }); i >= 0 {
		return rollout.GatePending, fmt.Sprintf("Job %s of another step has not ended; delete it if it does not end", s.Jobs[i].Name), nil
	}
	template := named(s.CronJobs, cronJob)
	if template == nil {
		return rollout.GateFailed, fmt.Sprintf("there is no CronJob %s in namespace %s; create it", cronJob, machineapi.Namespace), nil
	}
	return rollout.GatePending, "", s.newJob(template, name)
}

// ended reports whether a Job has completed or failed.
func ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// jobState returns the state of a gate from its Job.
func (s Snapshot) jobState(job *batchv1.Job) (rollout.GateState, string) {
	switch owner := metav1.GetControllerOf(job); {
	case job.DeletionTimestamp != nil:
		return rollout.GatePending, ""
	case owner == nil || owner.UID != s.OrlopCluster.UID:
		return rollout.GateFailed, fmt.Sprintf("Job %s was created by another program; delete it", job.Name)
	}
	for _, c := range job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return rollout.GatePassed, ""
		case c.Type == batchv1.JobFailed:
			return rollout.GateFailed, fmt.Sprintf("Job %s: %s; delete the Job to try the gate again", job.Name, cmp.Or(c.Message, c.Reason))
		}
	}
	return rollout.GatePending, ""
}

// newJob returns a Job of a gate with this name, from the template of its CronJob.
func (s Snapshot) newJob(template *batchv1.CronJob, name string) *batchv1.Job {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: machineapi.Namespace, Labels: map[string]string{}, Annotations: maps.Clone(template.Spec.JobTemplate.Annotations),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: machineapi.GroupVersion.String(), Kind: "OrlopCluster", Name: s.OrlopCluster.Name, UID: s.OrlopCluster.UID, Controller: new(true),
			}},
		},
		Spec: *template.Spec.JobTemplate.Spec.DeepCopy(),
	}
	maps.Copy(job.Labels, template.Spec.JobTemplate.Labels)
	job.Labels[gateLabel], job.Labels[clusterv1.ClusterNameLabel] = template.Name, s.Settings.Name
	if job.Spec.TTLSecondsAfterFinished == nil {
		job.Spec.TTLSecondsAfterFinished = new(int32(jobLife))
	}
	return job
}

// jobName returns the name of the Job of a gate. The name contains a hash of the step, and of the
// release and the time of the last change of each tested machine. A later rollout to the same
// release therefore has another Job.
func jobName(cronJob, step string, all []*machine) string {
	h := sha256.New()
	// writes to a hash cannot fail
	_, _ = fmt.Fprintln(h, step)
	for _, m := range all {
		if m.own == nil {
			continue
		}
		var since, failed metav1.Time
		if r := m.own.Status.Release; r != nil && r.Since != nil {
			since = *r.Since
		}
		if f := m.own.Status.Failed; f != nil && f.Time != nil {
			failed = *f.Time
		}
		_, _ = fmt.Fprintln(h, m.name, m.have(), since.Unix(), failed.Unix())
	}
	return cronJob + "-" + hex.EncodeToString(h.Sum(nil))[:10]
}

// resetGates sets the conditions that are gates to Unknown while a machine changes its release,
// because their values are about the former release. It does not change conditions that this
// package writes itself.
func (s Snapshot) resetGates(m *machine, conditions *[]metav1.Condition, generation int64) {
	if m.verdict.State != rollout.Updating && m.verdict.State != rollout.Permitted {
		return
	}
	own := m.conditions()
	for _, g := range s.OrlopCluster.Spec.Rollout.Gates {
		c := meta.FindStatusCondition(*conditions, g.ConditionType)
		if c == nil || slices.ContainsFunc(own, func(o metav1.Condition) bool { return o.Type == g.ConditionType }) {
			continue
		}
		s.setCondition(conditions, generation, metav1.Condition{Type: g.ConditionType, Status: metav1.ConditionUnknown, Reason: "Updating", Message: "the machine changes its release"})
	}
}
