package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/test/machinestate"
)

func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func TestFlags(t *testing.T) {
	if o, err := parse(nil); err != nil || !slices.Equal(o.only, names()) {
		t.Errorf("without flags: %+v, %v", o, err)
	}
	if o, err := parse([]string{"-only", "join,memory"}); err != nil || !slices.Equal(o.only, []string{"join", "memory"}) {
		t.Errorf("-only: %+v, %v", o, err)
	}
	for _, args := range [][]string{{"-only", "jion"}, {"-cuts", "0"}, {"more"}, {"-idle", "-1s"}, {"-nodes", "200,100"}, {"-nodes", "many"}, {"-nodes", "0"}, {"-load", "0s"}, {"-pairs", "0"}, {"-against", "/nonexistent"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("parse accepts %q", args)
		}
	}
}

// TestLimits checks that one run of all parts takes at most 45 minutes.
func TestLimits(t *testing.T) {
	o, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	total := time.Duration(0)
	for _, p := range parts(o) {
		total += p.limit
	}
	if total > 45*time.Minute {
		t.Errorf("the limits of all parts are %s together", total)
	}
	longer := o
	longer.load += time.Minute
	if scaleLimit(longer)-scaleLimit(o) != 4*time.Minute {
		t.Errorf("one more minute of load must raise the limit by 4 minutes: %s, before %s", scaleLimit(longer), scaleLimit(o))
	}
}

// TestClusterPatch checks that the patch can be merged into a configuration.
func TestClusterPatch(t *testing.T) {
	text, err := config.Merge([]byte("kind: Cluster\nspec: {}\n"), []byte(clusterPatch()))
	if err != nil || !strings.Contains(string(text), virtualAddress().String()) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestTimes(t *testing.T) {
	event := func(kind string, when float64, message string) *api.Event {
		return &api.Event{Source: "boot", Kind: kind, Time: timestamppb.New(at(when)), Message: message}
	}
	s := said{
		moments: []machinestate.Moment{{Name: "apid", Seconds: 3}, {Name: "orchestrator-api/etcd", Seconds: 8.5}, {Name: "else", Seconds: 9}},
		// The machine sets its clock between the first event and the second event.
		events:     []*api.Event{event("stage", 500, "init after 0.10 s"), event("stage", 21, "else after 9.00 s"), event("note", 30, "it is 1 s")},
		configured: at(16),
	}
	got, err := json.Marshal(s.times("cp2", at(4), at(5), at(40)))
	want := `{"name":"cp2","poweron_s":1,"userspace_s":8,"api_s":11,"configured_s":12,"etcd_voter_s":16.5,"node_ready_s":36}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, want %s, %v", got, want, err)
	}
	// If the machine does not answer, times sets only the times that it gets from other sources.
	got, err = json.Marshal(said{moments: s.moments}.times("w1", at(4), at(5), time.Time{}))
	if want := `{"name":"w1","poweron_s":1}`; err != nil || string(got) != want {
		t.Errorf("got %s, want %s, %v", got, want, err)
	}
}

func TestSilence(t *testing.T) {
	var answers []time.Time
	for i := range 20 {
		answers = append(answers, at(float64(i)/10)) // 0 to 1.9
	}
	answers = append(answers, at(4.4), at(4.5), at(5.2))
	for _, c := range []struct {
		cut, end, want float64
	}{
		{1.95, 5.3, 2.5}, // from the last answer before the cut
		{1.95, 3.9, 2},   // the silence lasts until the end of the observation
		{4.45, 5.3, 0.7}, // an earlier, longer silence is not counted
		{9, 9.1, 3.9},    // the last answer is long before the cut
	} {
		if got := longestSilence(answers, at(c.cut), at(c.end)).Seconds(); got < c.want-0.001 || got > c.want+0.001 {
			t.Errorf("cut at %v, end at %v: %v s, want %v", c.cut, c.end, got, c.want)
		}
	}
	if got := longestSilence(nil, at(1), at(3)); got != 2*time.Second {
		t.Errorf("without any answer: %s", got)
	}
	for _, c := range []struct {
		from, to float64
		want     bool
	}{{0, 1.9, true}, {0, 4.5, false}, {4.4, 5.3, true}, {1, 3.5, false}, {9, 9.5, true}, {9, 11, false}} {
		if got := answeredThroughout(answers, at(c.from), at(c.to)); got != c.want {
			t.Errorf("answered from %v to %v: %v", c.from, c.to, got)
		}
	}
}

func TestHolder(t *testing.T) {
	var services []machinestate.Service
	text := `[{"name":"orchestrator-node","components":[{"name":"kubelet","detail":"x"},{"name":"virtual-address","detail":"holds 10.77.0.9 since 2026-01-01T00:00:00Z"}]}]`
	if err := json.Unmarshal([]byte(text), &services); err != nil {
		t.Fatal(err)
	}
	if d := detailOf(services, "virtual-address"); !answersFor(d) {
		t.Errorf("answersFor(%q) = false", d)
	}
	for _, other := range []string{"10.77.0.12 holds 10.77.0.9", "no machine holds 10.77.0.9", "holds 10.77.0.90 since x", detailOf(nil, "virtual-address")} {
		if answersFor(other) {
			t.Errorf("answersFor(%q) = true, although the machine does not hold the address", other)
		}
	}
}

// webPod returns a pod with the condition Ready of the given status, and one container with the
// given ID.
func webPod(id string, ready core.ConditionStatus) core.Pod {
	return core.Pod{Status: core.PodStatus{
		Conditions:        []core.PodCondition{{Type: core.PodReady, Status: ready}},
		ContainerStatuses: []core.ContainerStatus{{ContainerID: id}},
	}}
}

func TestReadyPods(t *testing.T) {
	ending := webPod("d", core.ConditionTrue)
	ending.DeletionTimestamp = &meta.Time{Time: at(0)}
	list := []core.Pod{webPod("a", core.ConditionTrue), webPod("b", core.ConditionFalse), webPod("c", core.ConditionTrue), ending, webPod("", core.ConditionTrue), {}}
	if got := slices.Sorted(maps.Keys(readyPods(list, nil))); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("the Ready pods are %q, want a and c", got)
	}
	if got := slices.Sorted(maps.Keys(readyPods(list, map[string]bool{"a": true}))); !slices.Equal(got, []string{"c"}) {
		t.Errorf("the Ready pods with new containers are %q, want c", got)
	}
}

func TestNotStarted(t *testing.T) {
	node := func(name, start string, ready core.ConditionStatus) core.Node {
		return core.Node{ObjectMeta: meta.ObjectMeta{Name: name}, Status: core.NodeStatus{
			NodeInfo: core.NodeSystemInfo{BootID: start}, Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: ready}},
		}}
	}
	before := map[string]string{"a": "1", "b": "2", "c": "3"}
	list := []core.Node{node("a", "1", core.ConditionTrue), node("b", "9", core.ConditionFalse), node("c", "9", core.ConditionTrue)}
	if got := notStarted(list, before); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("notStarted = %q, want a and b", got)
	}
}

// TestRecord checks that add replaces the figures of the measured part. The figures of the other
// parts and the other fields of the file must remain.
func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	if err := os.WriteFile(file, []byte(`{"runs":[1],"cluster":{"join":{"poweron_to_ready_s":7},"memory":{"idle_s":1}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	r := record{file: file}
	if err := r.read(); err != nil {
		t.Fatal(err)
	}
	f := &memoryFigures{IdleS: 60}
	f.add(usage{Name: "cp1", UsedMiB: 500})
	f.add(usage{Name: "w1", UsedMiB: 180})
	f.add(usage{Name: "w2", UsedMiB: 190, AnonMiB: map[string]float64{"kubelet": 40, "apid": 60}})
	f.ended(outcome{At: at(0).UTC(), TookS: 61, Error: "enough"})
	if err := r.add(measured{pair: 1, name: "memory", figures: f}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Runs    []int
		Cluster struct {
			Join   joinFigures
			Memory memoryFigures
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	m := got.Cluster.Memory
	if len(got.Runs) != 1 || got.Cluster.Join.Ready == nil || m.Error != "enough" || m.IdleS != 60 || *m.ControlPlane != 500 || *m.Worker != 190 {
		t.Errorf("the file is %s", text)
	}
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{"used by a worker", "190.0 MiB", "≤ 200 MiB", "apid 60.0, kubelet 40.0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
}

func TestProcessesByService(t *testing.T) {
	var u usage
	u.addProcesses(
		[]machinestate.Process{{PID: 1, Name: "machined", Anonymous: 4 << 20}, {PID: 7, Name: "machined", Anonymous: 3 << 20}, {PID: 9, Name: "pause", Anonymous: 1 << 20}, {PID: 11, Name: "pause", Anonymous: 1 << 20}},
		[]machinestate.Service{{Name: "apid", PID: 7}, {Name: "off"}},
	)
	if u.AnonTotalMiB != 9 || !maps.Equal(u.AnonMiB, map[string]float64{"machined": 4, "apid": 3, "pause": 2}) {
		t.Errorf("%+v", u)
	}
}
