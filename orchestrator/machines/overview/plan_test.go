package overview

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// world is a cluster in memory. The commands of a script change its state.
type world struct {
	Snapshot
}

func newWorld() *world {
	return &world{Snapshot: Snapshot{
		Now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Cluster: "orlop", Own: "c1",
		Parts: []Part{
			{Name: "kube-apiserver", Process: "api", RunsOn: ControlPlane, Kubernetes: true, Extensions: []machineapi.Extension{{Point: PointAdmission, Name: "NodeRestriction", Source: BuiltIn}}},
			{Name: "kube-scheduler", Process: "controllers", RunsOn: Leader, Kubernetes: true},
			{Name: "drain", Process: "node", RunsOn: All},
			{Name: "drain", Process: "controllers", RunsOn: ControlPlane},
			{Name: "kube-proxy", Process: "node", RunsOn: External, Kubernetes: true},
			{Name: "balancer", Process: "node", RunsOn: Workers},
		},
	}}
}

// apply performs a change, as the API server does.
func (w *world) apply(c Change) {
	switch {
	case c.Health != nil:
		w.Health = c.Health
	default:
		w.Components = slices.DeleteFunc(slices.Clone(w.Components), func(o *machineapi.Component) bool { return o.Name == c.Component.Name })
		if c.Verb != Delete {
			w.Components = append(w.Components, c.Component)
		}
	}
}

// settle calls Plan and performs its changes until there are none, and returns a line for each
// change.
func (w *world) settle(t *testing.T) string {
	t.Helper()
	var lines []string
	for range 5 {
		changes := Plan(w.Snapshot)
		if len(changes) == 0 {
			return strings.Join(lines, "\n")
		}
		for _, c := range changes {
			w.apply(c)
			lines = append(lines, c.String())
		}
	}
	t.Fatalf("changes remain after five passes: %s", strings.Join(lines, "\n"))
	return ""
}

// TestScripts runs the scripts in testdata. These are the commands:
//
//	report                   machined writes a report; the input is its api.ClusterHealthResponse
//	access                   the input is the access points of the report
//	addon NAME ready|failed  an add-on has this state; the input is its line of text
//	remove NAME              an add-on is removed
//	register POINT NAME KIND a webhook or a policy is created
//	wait DURATION            the time passes
//	settle                   Plan runs until it has no changes; the output is all changes
//	show NAME                the output is the status of the Component NAME; show health prints
//	                         the status of the ClusterHealth
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.String())
			}
			return w.command(t, d, args)
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData, args []string) string {
	t.Helper()
	decode := func(to func(raw []byte) error) {
		raw, err := yaml.YAMLToJSON([]byte(d.Input))
		if err == nil {
			err = to(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	switch d.Cmd {
	case "report":
		h := &api.ClusterHealthResponse{}
		decode(func(raw []byte) error { return protojson.Unmarshal(raw, h) })
		h.At, w.Report.Health = timestamppb.New(w.Now), h
	case "access":
		decode(func(raw []byte) error { return json.Unmarshal(raw, &w.Report.Access) })
	case "addon":
		w.Addons = slices.DeleteFunc(w.Addons, func(a Addon) bool { return a.Name == args[0] })
		w.Addons = append(w.Addons, Addon{Name: args[0], Ready: args[1] == "ready", Line: d.Input})
	case "remove":
		w.Addons = slices.DeleteFunc(w.Addons, func(a Addon) bool { return a.Name == args[0] })
	case "register":
		w.Registered = append(w.Registered, machineapi.Extension{Point: args[0], Name: args[1], Source: args[2]})
	case "wait":
		length, err := time.ParseDuration(args[0])
		if err != nil {
			t.Fatal(err)
		}
		w.Now = w.Now.Add(length)
	case "settle":
		return w.settle(t)
	case "show":
		return w.show(t, args[0])
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return ""
}

// show returns the status of an object as YAML, followed by a line for each of its conditions.
func (w *world) show(t *testing.T, name string) string {
	t.Helper()
	health := w.Health.DeepCopy()
	status, conditions := any(&health.Status), &health.Status.Conditions
	if name != "health" {
		c := find(w.Components, name).DeepCopy()
		status, conditions = &c.Status, &c.Status.Conditions
	}
	var lines strings.Builder
	for _, c := range *conditions {
		lines.WriteString(strings.TrimSuffix(fmt.Sprintf("%s %s=%s %s: %s", c.LastTransitionTime.UTC().Format("15:04:05"), c.Type, c.Status, c.Reason, c.Message), ": ") + "\n")
	}
	*conditions = nil
	text, err := yaml.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + lines.String()
}

// TestBounds checks that the lists in a status have at most their limits if a thousand machines
// report problems.
func TestBounds(t *testing.T) {
	w := newWorld()
	w.Report.Health = &api.ClusterHealthResponse{At: timestamppb.New(w.Now)}
	for i := range 1000 {
		name := fmt.Sprintf("w%04d", i)
		w.Report.Health.Machines = append(w.Report.Health.Machines, &api.ClusterMachine{Name: name, Role: "worker", Version: name, Failed: []string{"drain"}})
		w.Report.Health.Problems = append(w.Report.Health.Problems, &api.ClusterFinding{Machine: name, Subject: "health", Reason: "drain: no"})
		w.Registered = append(w.Registered, machineapi.Extension{Point: PointAdmission, Name: name, Source: "ValidatingAdmissionPolicy"})
	}
	w.settle(t)
	st, c := w.Health.Status, find(w.Components, "drain").Status
	if len(st.Versions) != maxVersions || len(st.Problems) != maxListed || st.ProblemCount != 1000 || len(c.NotReady) != maxListed || c.Machines != 1000 || c.ReadyMachines != 0 {
		t.Errorf("%d versions, %d of %d problems, %d machines of %d", len(st.Versions), len(st.Problems), st.ProblemCount, len(c.NotReady), c.Machines)
	}
	extensions := find(w.Components, "kube-apiserver").Status.Extensions
	if len(extensions) != maxExtensions || extensions[maxExtensions-1].Name != "RBAC" {
		t.Errorf("%d extensions, the last is %+v", len(extensions), extensions[len(extensions)-1])
	}
}

// TestRead checks that Read returns an empty report without a file, the report of a complete file,
// and an error for a damaged file.
func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report")
	if r, err := Read(file); err != nil || r.Health != nil {
		t.Errorf("Read without a file: %+v, %v, want an empty report", r, err)
	}
	want := &api.ClusterHealthResponse{Cluster: "orlop", Machines: []*api.ClusterMachine{{Name: "c1"}}}
	health, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(nodespec.ClusterReport{Health: health, Access: nodespec.AccessPoints{TokenWebhook: "example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		content []byte
		ok      bool
	}{{content, true}, {content[:len(content)/2], false}, {[]byte(`{"health":"//8="}`), false}} {
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Read(file)
		if c.ok != (err == nil) || c.ok && (!proto.Equal(r.Health, want) || r.Access.TokenWebhook != "example.com") {
			t.Errorf("%s: %+v, %v", c.content, r, err)
		}
	}
}

// TestServices checks that servicePrefix, followed by the name of a process, is the name of its
// service in nodespec.
func TestServices(t *testing.T) {
	for process, service := range map[string]string{"node": nodespec.ServiceNode, "api": nodespec.ServiceAPI, "controllers": nodespec.ServiceControllers} {
		if servicePrefix+process != service {
			t.Errorf("the service of process %s is %s, want %s", process, service, servicePrefix+process)
		}
	}
}
