package overview

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// These are the reasons of the conditions of a ClusterHealth.
const (
	reasonUnknown    = "Unknown"
	reasonNoProblems = "NoProblems"
	reasonProblems   = "Problems"
	reasonStale      = "NoRecentReport"
)

// subjects maps each subject of problems to a condition of the ClusterHealth.
var subjects = []struct{ subject, condition string }{
	{"reachability", "MachinesReachable"},
	{"health", "MachinesHealthy"},
	{"skew", "VersionsSupported"},
	{"etcd", "EtcdHealthy"},
	{"certificate", "CertificatesValid"},
	{"upgrade", "UpgradesSucceeded"},
	{"document", "DocumentsEqual"},
}

// staleMessage is the message of all conditions if there is no recent report.
const staleMessage = "the leading control-plane machine has not asked the other machines lately; run `orlopctl health --cluster` to ask them"

// health returns the ClusterHealth with its new status. Without a recent report, it sets all
// conditions to Unknown and does not change the rest of the status.
func (s Snapshot) health() *machineapi.ClusterHealth {
	next := s.Health.DeepCopy()
	if !s.fresh() {
		conditions := []metav1.Condition{{Type: machineapi.ConditionReady, Status: metav1.ConditionUnknown, Reason: reasonStale, Message: staleMessage}}
		for _, subject := range subjects {
			conditions = append(conditions, metav1.Condition{Type: subject.condition, Status: metav1.ConditionUnknown, Reason: reasonStale, Message: staleMessage})
		}
		s.set(&next.Status.Conditions, conditions...)
		return next
	}
	h := s.Report.Health
	next.Status = machineapi.ClusterHealthStatus{
		Machine: h.Machine, Observed: timeOf(h.At), Machines: int32(len(h.Machines)), Versions: versions(h.Machines), Etcd: etcdOf(h.Etcd),
		Addons: h.Addons, Rollout: h.Rollout, ProblemCount: int32(len(h.Problems)), Problems: findings(h.Problems), Notes: findings(h.Notes),
		Conditions: next.Status.Conditions,
	}
	for _, m := range h.Machines {
		if m.Problem == "" && m.Ready {
			next.Status.HealthyMachines++
		}
		if e := timeOf(m.CertificateExpiry); e != nil && (next.Status.CertificateExpiry == nil || e.Before(next.Status.CertificateExpiry)) {
			next.Status.CertificateExpiry = e
		}
	}
	s.set(&next.Status.Conditions, conditionOf(machineapi.ConditionReady, h.Problems))
	for _, subject := range subjects {
		var of []*api.ClusterFinding
		for _, p := range h.Problems {
			if p.Subject == subject.subject {
				of = append(of, p)
			}
		}
		s.set(&next.Status.Conditions, conditionOf(subject.condition, of))
	}
	return next
}

// conditionOf returns a condition of this type (kind): True if there are no problems. Otherwise it
// is False, with the first problem and the number of further problems as its message.
func conditionOf(kind string, problems []*api.ClusterFinding) metav1.Condition {
	if len(problems) == 0 {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reasonNoProblems}
	}
	first := problems[0]
	message := first.Reason
	if first.Machine != "" {
		message = first.Machine + ": " + message
	}
	if more := len(problems) - 1; more > 0 {
		message += fmt.Sprintf("; and %d more", more)
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reasonProblems, Message: message}
}

// versions returns the number of machines of each version, the most frequent version first.
func versions(machines []*api.ClusterMachine) []machineapi.VersionCount {
	counts := map[machineapi.VersionCount]int32{} // the keys have no number of machines
	for _, m := range machines {
		if m.Version != "" {
			counts[machineapi.VersionCount{Version: m.Version, Kubernetes: m.Kubernetes}]++
		}
	}
	var all []machineapi.VersionCount
	for v, n := range counts {
		v.Machines = n
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b machineapi.VersionCount) int {
		return cmp.Or(cmp.Compare(b.Machines, a.Machines), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kubernetes, b.Kubernetes))
	})
	return all[:min(len(all), maxVersions)]
}

func etcdOf(e *api.ClusterEtcd) *machineapi.EtcdHealth {
	out := &machineapi.EtcdHealth{Leader: e.GetLeader(), Problem: e.GetProblem()}
	for _, m := range e.GetMembers() {
		if m.Learner {
			continue
		}
		out.Voters++
		if m.Problem != "" {
			out.Down++
		}
	}
	return out
}

func findings(all []*api.ClusterFinding) []machineapi.HealthFinding {
	var out []machineapi.HealthFinding
	for _, f := range all[:min(len(all), maxListed)] {
		out = append(out, machineapi.HealthFinding{Machine: f.Machine, Subject: f.Subject, Reason: f.Reason, Remedy: f.Remedy})
	}
	return out
}

// timeOf converts a time and truncates it to seconds, because Kubernetes stores seconds. It returns
// nil if t is nil or invalid.
func timeOf(t *timestamppb.Timestamp) *metav1.Time {
	if t.CheckValid() != nil {
		return nil
	}
	at := metav1.NewTime(t.AsTime().Truncate(time.Second))
	return &at
}
