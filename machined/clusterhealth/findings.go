package clusterhealth

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/slot"
)

// The subjects of findings.
const (
	subjectReachability = "reachability"
	subjectHealth       = "health"
	subjectSkew         = "skew"
	subjectEtcd         = "etcd"
	subjectCertificate  = "certificate"
	subjectUpgrade      = "upgrade"
	subjectDocument     = "document"
	subjectTrial        = "trial"
)

// caWarning is the time before the expiry of a CA in which the expiry is reported as a problem,
// because an operator has to rotate the CA. A certificate is reported as a problem if its renewal
// is late by more than overdue.
const (
	caWarning = 30 * 24 * time.Hour
	overdue   = 24 * time.Hour
)

// findings returns the problems and the notes: of the cluster first, then of the machines in their
// order.
func (o observation) findings() (problems, notes []*api.ClusterFinding) {
	problems = o.etcdProblems()
	documents, skews := o.documentProblems(), o.skews()
	newest := o.newestRelease()
	for _, a := range o.sorted() {
		problems = append(problems, a.problems(o.at)...)
		problems = append(problems, documents[a.Address]...)
		problems = append(problems, skews[a.Address]...)
		notes = append(notes, a.notes(newest)...)
	}
	return limited(problems), limited(notes)
}

// maxFindings is the maximum number of problems, and also of notes. maxHealth is the maximum number
// of failed checks of a machine that are listed, and also of its certificates with a problem. It is
// low, because a failed service makes all checks fail that depend on it.
const (
	maxFindings = 1000
	maxHealth   = 4
)

// limited returns the first findings. If it omits some, the last item states their number.
func limited(all []*api.ClusterFinding) []*api.ClusterFinding {
	more := len(all) - maxFindings
	if more <= 0 {
		return all
	}
	return append(all[:maxFindings:maxFindings], &api.ClusterFinding{Subject: subjectHealth, Reason: fmt.Sprintf("%d more are not listed", more), Remedy: "begin with the first"})
}

// problems returns the problems of the machine itself, apart from etcd, documents and skews.
func (a answer) problems(now time.Time) []*api.ClusterFinding {
	var all []*api.ClusterFinding
	add := func(subject, reason, remedy string) { all = append(all, a.finding(subject, reason, remedy)) }
	if a.report == nil {
		add(subjectReachability, a.problem, a.restartRemedy())
		return all
	}
	for _, text := range failedChecks(a.report.Health) {
		add(subjectHealth, text, fmt.Sprintf("`orlopctl services -n %s` and `orlopctl events -n %s` show more", a.Address, a.Address))
	}
	if len(all) == 0 && !a.report.Health.GetHealthy() {
		add(subjectHealth, "it is not healthy, and names no check", fmt.Sprintf("`orlopctl health --once -n %s` shows its checks", a.Address))
	}
	certificates := len(all) + maxHealth
	for _, c := range a.report.Certificates {
		if reason, remedy := certificateProblem(c, a.Address, now); reason != "" && len(all) < certificates {
			add(subjectCertificate, reason, remedy)
		}
	}
	if u := a.report.Upgrade; a.upgradeFailed() {
		add(subjectUpgrade, fmt.Sprintf("version %s is wanted, and its upgrade has %s: %s", u.To, u.Phase, u.Reason),
			fmt.Sprintf("`orlopctl upgrade status -n %s` shows the log; want another release (runbook, task 106)", a.Address))
	}
	return all
}

// failedChecks returns the first failed checks. If it omits some, the last item states their
// number.
func failedChecks(h *api.HealthResponse) (all []string) {
	more := 0
	for _, c := range h.GetChecks() {
		switch {
		case c.Ok:
		case len(all) == maxHealth:
			more++
		default:
			all = append(all, strings.TrimSuffix(c.Name+": "+c.Detail, ": "))
		}
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("%d more checks have failed", more))
	}
	return all
}

// finding returns a finding about the machine.
func (a answer) finding(subject, reason, remedy string) *api.ClusterFinding {
	return &api.ClusterFinding{Machine: a.label(), Subject: subject, Reason: line(reason), Remedy: line(remedy)}
}

// restartRemedy is the remedy for a machine that does not answer.
func (a answer) restartRemedy() string {
	if a.ControlPlane {
		return "start it, or if it is lost, replace it (runbook, task 78) or remove it (task 79)"
	}
	return fmt.Sprintf("start it, or if it is lost, remove it (`orlopctl nodes remove %s`)", a.label())
}

// upgradeFailed reports whether the last upgrade was to the wanted release and has failed.
func (a answer) upgradeFailed() bool {
	u := a.report.GetUpgrade()
	phase := slot.Phase(u.GetPhase())
	return (phase == slot.RolledBack || phase == slot.Failed) && u.GetTo() != "" && u.GetTo() == a.report.GetObject().GetWanted() && u.GetTo() != a.report.GetVersion()
}

// certificateProblem returns the problem of a certificate; empty if there is none. A certificate
// without a time of renewal is a CA: the machine renews its own certificates, and an operator
// rotates a CA.
func certificateProblem(c *api.MachineCertificate, address string, now time.Time) (reason, remedy string) {
	left := c.Expires.AsTime().Sub(now)
	when := c.Expires.AsTime().UTC().Format(time.DateOnly)
	switch {
	case c.Problem != "":
		return fmt.Sprintf("%s cannot be read: %s", c.File, c.Problem), fmt.Sprintf("`orlopctl get certificates -n %s` shows all", address)
	case c.Renews == nil && left <= 0:
		return fmt.Sprintf("the CA in %s has expired on %s", c.File, when), "rotate the CA (runbook, task 61)"
	case c.Renews == nil && left < caWarning:
		return fmt.Sprintf("the CA in %s expires on %s", c.File, when), "rotate the CA (runbook, task 61)"
	case c.Renews != nil && left <= 0:
		return fmt.Sprintf("%s has expired on %s", c.File, when), fmt.Sprintf("check the clock (`orlopctl get time -n %s`) and reboot the machine", address)
	case c.Renews != nil && now.After(c.Renews.AsTime().Add(overdue)):
		return fmt.Sprintf("%s expires on %s, and its renewal is overdue", c.File, when), fmt.Sprintf("`orlopctl events -n %s` shows why", address)
	}
	return "", ""
}

// notes returns the states of a machine that are no problem.
func (a answer) notes(newest string) []*api.ClusterFinding {
	var all []*api.ClusterFinding
	add := func(subject, reason, remedy string) { all = append(all, a.finding(subject, reason, remedy)) }
	r := a.report
	if r == nil {
		return nil
	}
	u := r.Upgrade
	switch phase := slot.Phase(u.GetPhase()); {
	case phase == slot.Writing, phase == slot.Written:
		add(subjectUpgrade, fmt.Sprintf("it is being upgraded from version %s to %s", u.GetFrom(), u.GetTo()), "")
	case phase == slot.Trial:
		add(subjectTrial, fmt.Sprintf("version %s is on trial", u.GetTo()), "it ends by itself: a commit or a rollback")
	case (phase == slot.RolledBack || phase == slot.Failed) && !a.upgradeFailed() && u.GetTo() != r.Version:
		add(subjectUpgrade, fmt.Sprintf("its last upgrade, to version %s, has %s: %s", u.GetTo(), phase, u.GetReason()), fmt.Sprintf("`orlopctl upgrade status -n %s` shows the log", a.Address))
	}
	if deadline := valid(r.TrialDeadline); deadline != nil {
		add(subjectTrial, "its configuration is on trial until "+deadline.AsTime().UTC().Format(time.RFC3339), fmt.Sprintf("`orlopctl confirm-config -n %s` keeps it", a.Address))
	}
	if semver.IsValid("v"+r.Version) && semver.Compare("v"+r.Version, "v"+newest) < 0 {
		add(subjectSkew, fmt.Sprintf("it runs version %s, and the newest in the cluster is %s", r.Version, newest), "upgrade it (runbook, task 93)")
	}
	return all
}

// newestRelease returns the newest version of the system in the cluster.
func (o observation) newestRelease() (newest string) {
	for _, a := range o.answers {
		if v := a.report.GetVersion(); semver.IsValid("v"+v) && semver.Compare("v"+v, "v"+newest) > 0 {
			newest = v
		}
	}
	return newest
}

// skews returns problems by address, for each machine with an unsupported version of Kubernetes.
func (o observation) skews() map[string][]*api.ClusterFinding {
	var nodes []disruption.Node
	for _, a := range o.sorted() {
		nodes = append(nodes, disruption.Node{Name: a.label(), Address: a.Address, Version: a.report.GetKubernetes(), ControlPlane: a.ControlPlane})
	}
	all := map[string][]*api.ClusterFinding{}
	for _, s := range disruption.Skews(nodes) {
		m := answer{Machine: Machine{Name: s.Machine.Name, Address: s.Machine.Address}}
		all[m.Address] = append(all[m.Address], m.finding(subjectSkew, s.Reason, s.Remedy))
	}
	return all
}

// documentProblems returns problems by address, for each machine with a Cluster document that
// differs from the document of most machines.
func (o observation) documentProblems() map[string][]*api.ClusterFinding {
	var copies []copyOf
	for _, a := range o.answers { // a copy for each answer, so that the indexes are the same
		copies = append(copies, copyOf{machine: a.label(), worker: !a.ControlPlane, fields: a.report.GetFields()})
	}
	all := map[string][]*api.ClusterFinding{}
	for _, d := range compareDocuments(copies) {
		a := o.answers[d.copy]
		all[a.Address] = append(all[a.Address], a.finding(subjectDocument, d.String(),
			fmt.Sprintf("compare them (`orlopctl show-config -n %s`), and apply the right values (`orlopctl patch-config -n %s`)", a.Address, a.Address)))
	}
	return all
}

// etcdProblems returns the problems of etcd. Each concerns the whole cluster or a member of etcd.
func (o observation) etcdProblems() []*api.ClusterFinding {
	var all []*api.ClusterFinding
	add := func(machine, reason, remedy string) {
		all = append(all, &api.ClusterFinding{Machine: machine, Subject: subjectEtcd, Reason: line(reason), Remedy: line(remedy)})
	}
	e := o.etcd
	voters, down := 0, 0
	for _, m := range e.GetMembers() {
		if m.Learner {
			continue
		}
		voters++
		if m.Problem != "" {
			down++
		}
	}
	switch {
	case e.GetProblem() != "":
		add(o.answers[0].label(), "its etcd does not answer: "+e.Problem, "run `orlopctl etcd status` on each control-plane machine; if most of them are lost, recover etcd (runbook, task 80)")
	case e.GetLeader() == "":
		add("", "etcd has no leader, so the Kubernetes API does not answer", "start the control-plane machines; if most of them are lost, recover etcd (runbook, task 80)")
	case down > 0 && down >= etcdjoin.FailureTolerance(voters):
		add("", fmt.Sprintf("etcd tolerates no further failure: %d of %d members are down", down, voters), "start or replace them before any other work")
	}
	for _, alarm := range e.GetAlarms() {
		add("", "etcd has raised the alarm "+alarm, "runbook, task 55")
	}
	for _, m := range e.GetMembers() {
		known := slices.ContainsFunc(o.answers, func(a answer) bool {
			return a.ControlPlane && (a.Name == m.Name && m.Name != "" || slices.ContainsFunc(m.PeerUrls, func(url string) bool { return hasHost(url, a.Address) }))
		})
		name := m.Name
		if name == "" {
			name = m.Id
		}
		switch {
		case !known:
			add(name, "it is a member of etcd, and Cluster.spec.controlPlanes does not name it", fmt.Sprintf("add its address, or remove it (`orlopctl etcd remove %s`)", name))
		case m.Problem != "":
			add(name, "its member of etcd does not answer: "+m.Problem, "start it, or if it is lost, replace it (runbook, task 78)")
		}
	}
	return all
}
