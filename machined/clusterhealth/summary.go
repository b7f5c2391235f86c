package clusterhealth

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Machine is a machine of the cluster.
type Machine struct {
	Name         string // empty if it is unknown
	Address      string
	ControlPlane bool
}

// answer is the answer of a machine.
type answer struct {
	Machine
	report  *api.ReportMachineResponse // nil without an answer
	problem string                     // why there is no answer
}

// observation is the collected state of the cluster.
type observation struct {
	cluster string
	at      time.Time
	answers []answer // this machine first
	etcd    *api.ClusterEtcd
}

// sorted returns the answers in the order of the result: control-plane machines first, then by
// name. In o.answers this machine is first, for the comparison of documents.
func (o observation) sorted() []answer {
	all := slices.Clone(o.answers)
	slices.SortStableFunc(all, func(a, b answer) int {
		if a.ControlPlane != b.ControlPlane {
			if a.ControlPlane {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
	})
	return all
}

// label names a machine in a finding.
func (a answer) label() string { return cmp.Or(a.Name, a.Address) }

// withNames completes the names of control-plane machines: by their reports, or by the members of
// etcd at their addresses. A worker has its name from the ledger, so its report cannot change the
// name.
func (o observation) withNames() observation {
	o.answers = slices.Clone(o.answers)
	for i, a := range o.answers {
		if !a.ControlPlane {
			continue
		}
		if name := a.report.GetName(); name != "" {
			o.answers[i].Name = word(name)
		}
		for _, m := range o.etcd.GetMembers() {
			if o.answers[i].Name == "" && slices.ContainsFunc(m.PeerUrls, func(url string) bool { return hasHost(url, a.Address) }) {
				o.answers[i].Name = m.Name
			}
		}
	}
	return o
}

// hasHost reports whether a URL has an address as its host.
func hasHost(url, address string) bool {
	_, rest, _ := strings.Cut(url, "://")
	return strings.HasPrefix(rest, address+":") || strings.HasPrefix(rest, "["+address+"]:")
}

// summarize returns the health of the cluster.
func summarize(o observation) *api.ClusterHealthResponse {
	o = o.withNames()
	out := &api.ClusterHealthResponse{Cluster: o.cluster, At: timestamppb.New(o.at), Etcd: o.etcd}
	if len(o.answers) > 0 {
		out.Machine = o.answers[0].Name
	}
	for _, a := range o.sorted() {
		out.Machines = append(out.Machines, a.machine())
		if a.report == nil {
			continue
		}
		out.Addons = cmp.Or(out.Addons, a.detail(checkAddons))
		out.Rollout = cmp.Or(out.Rollout, a.detail(checkMachines))
	}
	out.Problems, out.Notes = o.findings()
	out.Healthy = len(out.Problems) == 0
	return out
}

// machine returns the row of a machine.
func (a answer) machine() *api.ClusterMachine {
	m := &api.ClusterMachine{Name: a.Name, Address: a.Address, Role: string(config.RoleWorker), Problem: line(a.problem)}
	if a.ControlPlane {
		m.Role = string(config.RoleControlPlane)
	}
	r := a.report
	if r == nil {
		return m
	}
	m.Version, m.Kubernetes, m.Ready = word(r.Version), word(r.Kubernetes), r.Health.GetHealthy()
	m.Upgrade, m.TrialDeadline = word(r.Upgrade.GetPhase()), valid(r.TrialDeadline)
	m.Wanted = word(r.Object.GetWanted())
	m.Message = line(cmp.Or(firstFailed(r.Health), r.Object.GetMessage()))
	for _, c := range r.Health.GetChecks() {
		if !c.Ok && len(m.Failed) < maxChecks {
			m.Failed = append(m.Failed, word(c.Name))
		}
	}
	for _, c := range r.Certificates {
		if c.Problem == "" {
			m.CertificateExpiry = valid(c.Expires)
			break
		}
	}
	return m
}

// standby is the detail of a component that runs on another machine.
const standby = "standby"

// detail returns the text of a passed check; empty if the check is missing or has failed. It is
// also empty if the component is on standby: then another machine has the text.
func (a answer) detail(check string) string {
	for _, c := range a.report.GetHealth().GetChecks() {
		if c.Name == check && c.Ok && c.Detail != standby {
			return line(c.Detail)
		}
	}
	return ""
}

// firstFailed returns the first failed check; empty if all have passed.
func firstFailed(h *api.HealthResponse) string {
	for _, c := range h.GetChecks() {
		if !c.Ok {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// maxLine is the maximum length of a text from a machine in bytes, and maxWord that of a version.
// With these limits and maxFindings, the answer for a thousand machines fits into a message of the
// API.
const (
	maxLine = 512
	maxWord = 64
)

// line returns a text from a machine as a short single line, because the machine can be
// compromised.
func line(text string) string { return cut(text, maxLine) }

// word returns a version or another short text from a machine.
func word(text string) string { return cut(text, maxWord) }

// valid returns a time of a machine; nil if it is outside the years 1 to 9999. JSON has no text for
// such a time, so a single compromised machine would prevent each answer in JSON.
func valid(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	if t.CheckValid() != nil {
		return nil
	}
	return t
}

// cut returns the start of a text, on a single line. It reads only the start, so a long text from a
// compromised machine does not cost time.
func cut(text string, most int) string {
	text = sanitize.Text(sanitize.Line(text[:min(len(text), 2*most)]))
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("…")], "") + "…"
}
