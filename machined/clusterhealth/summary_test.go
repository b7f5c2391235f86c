package clusterhealth

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
)

var update = flag.Bool("update", false, "rewrite the golden file")

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// reported returns the answer of a healthy machine, changed by the functions.
func reported(m Machine, change ...func(*api.ReportMachineResponse)) answer {
	role := map[bool]string{true: "controlplane", false: "worker"}[m.ControlPlane]
	r := &api.ReportMachineResponse{
		Name: m.Name, Role: role, Version: "0.2.0", Kubernetes: "v1.37.2", Health: &api.HealthResponse{Healthy: true}, Fields: fields("", ""),
		Certificates: []*api.MachineCertificate{
			{File: "/run/apid/server.crt", Expires: timestamppb.New(noon.AddDate(0, 3, 0)), Renews: timestamppb.New(noon.AddDate(0, 2, 0))},
			{File: "/run/kubernetes/ca.crt", Expires: timestamppb.New(noon.AddDate(9, 0, 0))},
		},
	}
	for _, f := range change {
		f(r)
	}
	return answer{Machine: m, report: r}
}

// fields returns the digests of a copy of the Cluster document. If path is not empty, the field
// path has another value.
func fields(path, value string) map[string][]byte {
	all := map[string][]byte{}
	for _, p := range []string{"Cluster.metadata.name", "Cluster.spec.endpoint", "Cluster.spec.secretsEncryptionKey", "Cluster.spec.kubernetes.audit.maxFiles"} {
		all[p] = []byte("usual")
	}
	if path != "" {
		all[path] = []byte(value)
	}
	return all
}

func unhealthy(check, detail string) func(*api.ReportMachineResponse) {
	return func(r *api.ReportMachineResponse) {
		r.Health.Healthy = false
		r.Health.Checks = append(r.Health.Checks, &api.HealthCheck{Name: check, Detail: detail})
	}
}

func differs(path, value string) func(*api.ReportMachineResponse) {
	return func(r *api.ReportMachineResponse) { r.Fields = fields(path, value) }
}

func etcdOf(leader string, members ...*api.EtcdMember) *api.ClusterEtcd {
	return &api.ClusterEtcd{Leader: leader, Members: members}
}

func member(name, address, problem string) *api.EtcdMember {
	return &api.EtcdMember{Id: "1f", Name: name, PeerUrls: []string{"https://" + address + ":2380"}, Problem: problem}
}

var (
	m1 = Machine{Name: "m1", Address: "10.0.0.11", ControlPlane: true}
	m2 = Machine{Name: "m2", Address: "10.0.0.12", ControlPlane: true}
	m3 = Machine{Name: "m3", Address: "10.0.0.13", ControlPlane: true}
	m4 = Machine{Name: "m4", Address: "10.0.0.14", ControlPlane: true}
	w1 = Machine{Name: "w1", Address: "10.0.0.21"}
	w2 = Machine{Name: "w2", Address: "10.0.0.22"}

	three = etcdOf("m1", member("m1", "10.0.0.11", ""), member("m2", "10.0.0.12", ""), member("m3", "10.0.0.13", ""))
)

// observations are the cases of TestSummary.
func observations() []struct {
	name string
	o    observation
} {
	one := etcdOf("m1", member("m1", "10.0.0.11", ""))
	object := func(wanted, message string) func(*api.ReportMachineResponse) {
		return func(r *api.ReportMachineResponse) {
			r.Object = &api.ReportedObject{Wanted: wanted, Message: message}
		}
	}
	upgraded := func(to, phase, reason string) func(*api.ReportMachineResponse) {
		return func(r *api.ReportMachineResponse) {
			r.Upgrade = &api.UpgradeStatus{From: "0.2.0", To: to, Phase: phase, Reason: reason}
		}
	}
	check := func(name, detail string) func(*api.ReportMachineResponse) {
		return func(r *api.ReportMachineResponse) {
			r.Health.Checks = append(r.Health.Checks, &api.HealthCheck{Name: name, Ok: true, Detail: detail})
		}
	}
	kubernetes := func(v string) func(*api.ReportMachineResponse) {
		return func(r *api.ReportMachineResponse) { r.Kubernetes = v }
	}
	expires := func(in, renewsIn time.Duration) func(*api.ReportMachineResponse) {
		return func(r *api.ReportMachineResponse) {
			c := &api.MachineCertificate{File: "/run/x.crt", Expires: timestamppb.New(noon.Add(in))}
			if renewsIn != 0 {
				c.Renews = timestamppb.New(noon.Add(renewsIn))
			}
			r.Certificates = []*api.MachineCertificate{c}
		}
	}
	day := 24 * time.Hour
	return []struct {
		name string
		o    observation
	}{
		{"a machine alone", observation{answers: []answer{reported(m1)}, etcd: one}},
		{"a healthy cluster", observation{answers: []answer{
			reported(m1, check("addons", "standby"), check("machines", "standby")), reported(w2), reported(w1, object("0.2.0", "the object is up to date")),
			reported(m3, check("addons", "2 of 2 add-ons are ready"), check("machines", "4 machines")), reported(m2),
		}, etcd: three}},
		{"machines without an answer", observation{answers: []answer{
			reported(m1), {Machine: Machine{Address: "10.0.0.12", ControlPlane: true}, problem: "it cannot be reached: no answer"}, reported(m3), {Machine: w1, problem: "it has not answered within 4s"},
		}, etcd: etcdOf("m1", member("m1", "10.0.0.11", ""), member("m2", "10.0.0.12", "no answer"), member("m3", "10.0.0.13", ""))}},
		{"Kubernetes and etcd are down", observation{answers: []answer{
			reported(m1, unhealthy("etcd", "waits for a quorum"), unhealthy("kube-apiserver", "waits for etcd"), object("0.3.0", "the machine has accepted version 0.3.0")),
			{Machine: m2, problem: "it cannot be reached"}, {Machine: m3, problem: "it cannot be reached"},
		}, etcd: &api.ClusterEtcd{Problem: "etcd waits for a quorum: 1 of 3 members run, the quorum is 2"}}},
		{"unhealthy without a check", observation{answers: []answer{reported(m1, func(r *api.ReportMachineResponse) { r.Health.Healthy = false })}, etcd: one}},
		{"etcd", observation{answers: []answer{reported(m1), reported(m2)}, etcd: &api.ClusterEtcd{
			Alarms: []string{"NOSPACE"}, Members: []*api.EtcdMember{member("m1", "10.0.0.11", ""), member("m9", "10.0.0.19", "no answer"), member("", "10.0.0.12", "not started")},
		}}},
		{"etcd: a learner is down", observation{answers: []answer{reported(m1), reported(m2), reported(m3), reported(m4)}, etcd: etcdOf("m1",
			member("m1", "10.0.0.11", ""), member("m2", "10.0.0.12", ""), member("m3", "10.0.0.13", ""), &api.EtcdMember{Id: "2f", Name: "m4", PeerUrls: []string{"https://10.0.0.14:2380"}, Learner: true, Problem: "no answer"})}},
		{"skew", observation{answers: []answer{reported(m1), reported(m2, kubernetes("v1.35.1")), reported(w1, kubernetes("v1.36.0")), reported(w2, kubernetes("v1.33.0"))},
			etcd: etcdOf("m1", member("m1", "10.0.0.11", ""), member("m2", "10.0.0.12", ""))}},
		{"certificates", observation{answers: []answer{
			reported(m1, expires(-time.Hour, -9*day)), reported(w1, expires(5*day, -2*day)), reported(w2, expires(20*day, 0)), reported(Machine{Name: "w3", Address: "10.0.0.23"}, expires(-day, 0)),
			reported(Machine{Name: "w4", Address: "10.0.0.24"}, func(r *api.ReportMachineResponse) {
				r.Certificates = []*api.MachineCertificate{{File: "/run/y.crt", Problem: "permission denied"}}
			}),
		}, etcd: one}},
		{"upgrades and trials", observation{answers: []answer{
			reported(m1, upgraded("0.3.0", "rolled back", "the kubelet did not become ready"), object("0.3.0", "version 0.3.0 was rolled back")),
			reported(m2, upgraded("0.3.0", "rolled back", "by an operator")), reported(m3, upgraded("0.3.0", "written", "")),
			reported(w1, upgraded("0.3.0", "trial", ""), func(r *api.ReportMachineResponse) {
				r.Version, r.TrialDeadline = "0.3.0", timestamppb.New(noon.Add(time.Minute))
			}),
			reported(w2, upgraded("0.2.0", "committed", "")),
		}, etcd: three}},
		{"documents: one of three differs", observation{answers: []answer{
			reported(m1), reported(m2, differs("Cluster.spec.secretsEncryptionKey", "another")), reported(m3), reported(w1, differs("Cluster.spec.kubernetes.audit.maxFiles", "9")), reported(w2, differs("Cluster.spec.endpoint", "x")),
		}, etcd: three}},
		{"documents: the machine that answers differs", observation{answers: []answer{reported(m1, differs("Cluster.spec.endpoint", "x")), reported(m2), reported(m3)}, etcd: three}},
		{"documents: one against one", observation{answers: []answer{reported(m1), reported(m2, differs("Cluster.spec.endpoint", "x"))}, etcd: etcdOf("m1", member("m1", "10.0.0.11", ""), member("m2", "10.0.0.12", ""))}},
		{"documents: an older version lacks a field", observation{answers: []answer{
			reported(m1), reported(m2, func(r *api.ReportMachineResponse) {
				r.Version = "0.1.9"
				delete(r.Fields, "Cluster.spec.kubernetes.audit.maxFiles")
			}),
		}, etcd: etcdOf("m1", member("m1", "10.0.0.11", ""), member("m2", "10.0.0.12", ""))}},
		{"a compromised worker", observation{answers: []answer{
			reported(m1), reported(w1, func(r *api.ReportMachineResponse) {
				r.Name, r.Role, r.Version = "m1", "controlplane", "0.9\x1b[31m\n9"
				never := &timestamppb.Timestamp{Seconds: 1 << 40}
				r.TrialDeadline, r.Certificates = never, []*api.MachineCertificate{{File: "/run/x.crt", Expires: never}}
			}, unhealthy("x", strings.Repeat("y", 2000))),
		}, etcd: one}},
	}
}

// TestSummary compares the health of clusters with testdata/summary.golden.
func TestSummary(t *testing.T) {
	var out strings.Builder
	for _, test := range observations() {
		test.o.cluster, test.o.at = "orlop", noon
		h := summarize(test.o)
		if _, err := protojson.Marshal(h); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		fmt.Fprintf(&out, "# %s\nhealthy %t, answered by %s", test.name, h.Healthy, h.Machine)
		for _, text := range []string{h.Addons, h.Rollout} {
			if text != "" {
				out.WriteString("; " + text)
			}
		}
		for _, m := range h.Machines {
			fmt.Fprintf(&out, "\n  %s %s %s ready=%t", m.Name, m.Address, m.Role, m.Ready)
			for _, text := range []string{m.Version, m.Kubernetes, m.Wanted, m.Upgrade, m.Message, m.Problem} {
				if text != "" {
					fmt.Fprintf(&out, " | %.80s", text)
				}
			}
		}
		for kind, all := range [][]*api.ClusterFinding{h.Problems, h.Notes} {
			for _, f := range all {
				fmt.Fprintf(&out, "\n%s %s (%s): %.160s\n    → %s", []string{"problem", "note   "}[kind], f.Machine, f.Subject, f.Reason, f.Remedy)
			}
		}
		out.WriteString("\n\n")
	}
	const golden = "testdata/summary.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || out.String() != string(want) {
		t.Errorf("%s differs (%v); run: go test ./machined/clusterhealth -update; got:\n%s", golden, err, out.String())
	}
}

// TestThousandMachines checks that the answer for a thousand machines fits into a message of the
// API (4 MiB), whatever the machines report.
func TestThousandMachines(t *testing.T) {
	long := strings.Repeat("x\n", 1000)
	o := observation{answers: []answer{reported(m1)}, etcd: three}
	for i := range 1000 {
		o.answers = append(o.answers, reported(Machine{Name: fmt.Sprintf("w%d", i), Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250)}, func(r *api.ReportMachineResponse) {
			r.Version, r.Kubernetes, r.Object = long, long, &api.ReportedObject{Wanted: long, Message: long}
			r.Upgrade = &api.UpgradeStatus{To: long, Phase: "rolled back", Reason: long}
			for range 8 {
				unhealthy(long, long)(r)
			}
			for range 8 {
				r.Certificates = append(r.Certificates, &api.MachineCertificate{File: long, Problem: long})
			}
		}))
	}
	h := summarize(o)
	if size := proto.Size(h); size > 4<<20 || h.Healthy || len(h.Machines) != 1001 || len(h.Problems) != maxFindings+1 {
		t.Errorf("%d bytes, %d machines, %d problems", size, len(h.Machines), len(h.Problems))
	}
	if last := h.Problems[maxFindings]; !strings.HasSuffix(last.Reason, " more are not listed") {
		t.Errorf("the last problem: %v", last)
	}
}

// TestFindingsAreComplete checks that each problem names a machine or etcd, and has a remedy.
func TestFindingsAreComplete(t *testing.T) {
	for _, test := range observations() {
		for _, f := range summarize(test.o).Problems {
			if f.Subject == "" || f.Reason == "" || f.Remedy == "" || f.Machine == "" && f.Subject != subjectEtcd {
				t.Errorf("%s: %v", test.name, f)
			}
			if strings.ContainsAny(f.Reason+f.Machine, "\n\x1b") || len(f.Reason) > maxLine {
				t.Errorf("%s: %q", test.name, f.Reason)
			}
		}
	}
}
