package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/test/apiload"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/test/targets"
)

const saidByBaseline = "BASELINE userspace 7.50\r\nBASELINE api 22.00\r\nBASELINE node-ready 31.25\r\nBASELINE pod-running 36.00\r\n" +
	"BASELINE process etcd anon_kB 30720 rss_kB 61440 cpu_s 1.5\r\nBASELINE process kubelet anon_kB 40960 rss_kB 100000 cpu_s 2\r\n" +
	"BASELINE memory used_kB 1048576 of which tmpfs_kB 462848\r\nBASELINE idle 66.50\r\nBASELINE end 126.50\r\n"

func TestParseBaseline(t *testing.T) {
	run, complete, err := parseBaseline(saidByBaseline)
	if err != nil || !complete {
		t.Fatalf("complete %v, %v", complete, err)
	}
	for _, c := range []struct {
		what string
		got  *float64
		want float64
	}{
		{"api", run.ToKubeAPI, 14.5}, {"node", run.ToNodeReady, 23.75}, {"pod", run.ToPodRunning, 28.5}, {"memory", run.MachineUsedMiB, 572}, {"processes", run.AnonTotalMiB, 70},
	} {
		if c.got == nil || *c.got != c.want {
			t.Errorf("%s: %s, expected %v", c.what, number(c.got), c.want)
		}
	}
	if run.AnonMiB["etcd"] != 30 || run.AnonMiB["kubelet"] != 40 {
		t.Errorf("processes: %v", run.AnonMiB)
	}
}

func TestParseBaselineThatIsNotWhole(t *testing.T) {
	if _, complete, err := parseBaseline("BASELINE userspace 7.5\nBASELINE api 22\n"); complete || err != nil {
		t.Errorf("a run that ended early: complete %v, %v", complete, err)
	}
	if _, _, err := parseBaseline("BASELINE userspace 7.5\nBASELINE end 60\n"); err == nil {
		t.Error("parseBaseline accepts a last line without the stages before it")
	}
	if _, _, err := parseBaseline("BASELINE api soon\n"); err == nil {
		t.Error("parseBaseline accepts a time that is no number")
	}
}

// exampleRun returns the figures of a boot of our machine. The parameter slow multiplies all times,
// and a run with a higher i takes longer.
func exampleRun(slow float64, i int) machineRun {
	v := func(f float64) *float64 { f *= slow; return &f }
	size := func(f float64) *float64 { return &f }
	run := machineRun{figures: figures{
		startFigures: startFigures{
			PoweronToAPI: v(9 + float64(i)), PoweronToUserspace: v(6), APIAfterInit: v(3),
			ToKubeAPI: v(8), ToNodeReady: v(12 + float64(4*i)), ToPodRunning: v(15),
		},
		memoryFigures:  memoryFigures{MachineUsedMiB: size(429)},
		ArtifactMiB:    size(107.3),
		upgradeFigures: newUpgradeFigures(time.Unix(0, 0), time.Unix(30, 0), time.Unix(60, 0), time.Unix(int64(70*slow), 0), time.Minute, 600<<20, 100<<20),
		idleFigures:    idleFigures{IdleProcessor: v(9), IdleBusy: v(6), IdleByService: map[string]float64{"orchestrator-api": *v(3.5), "containerd": *v(0.2)}},
		floodFigures:   newFloodFigures(apiload.Pace{P99: 40}, apiload.Pace{P99: 60 * slow}),
	}}
	run.addProcesses([]process{
		{PID: 1, Name: "machined", Anonymous: 20 << 20}, {PID: 7, Name: "machined", Anonymous: 15 << 20}, {PID: 9, Name: "pause", Anonymous: 1 << 20}, {PID: 11, Name: "pause", Anonymous: 1 << 20},
	}, []service{{Name: "apid", PID: 7}})
	run.Timeline = []stage{{What: "init"}, {What: "orchestrator-api/etcd", Seconds: 5, Waits: []waited{{For: "its log is replayed", Seconds: 2}, {For: "too short", Seconds: 0.01}}}}
	return run
}

// example returns a report with two pairs of runs: each pair has a run of our machine, of the
// former release and of the baseline.
func example(t *testing.T) report {
	t.Helper()
	r := report{
		Version: "0.2.0", Command: "go run ./test/bench -against build/previous", Executables: []string{"/usr/bin/machined", "/usr/bin/runc"},
		MemoryMiB: 6144, Processors: 2, IdleSeconds: 60, Against: &formerReport{Version: "0.1.0"},
	}
	for i := range 2 {
		r.addOurs(exampleRun(1, i), 0, nil)
		r.addFormer(exampleRun(2, i), 1, nil)
		theirs, _, err := parseBaseline(saidByBaseline)
		if err != nil {
			t.Fatal(err)
		}
		idle := 12.0
		theirs.IdleProcessor = &idle
		r.addBaseline(theirs, i, nil)
	}
	r.addFormer(machineRun{}, 2, errEarly)
	r.summarize()
	return r
}

func TestReportGolden(t *testing.T) {
	r := example(t)
	var out bytes.Buffer
	printReport(&out, r)
	printTimeline(&out, r.typical())
	if err := targets.Write(&out, r.Command, r.Targets); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, out.String(), "report.txt")
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, string(text)+"\n", "report.json")
}

// TestReportOfOneSide checks a report without the baseline and the former release. It contains none
// of their figures and no ratios, not even zeros.
func TestReportOfOneSide(t *testing.T) {
	r := example(t)
	r.Baseline, r.Against, r.comparison = nil, nil, comparison{}
	r.summarize()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"baseline", "against", "ratio", "pair_ratios"} {
		if v, there := fields[name]; there {
			t.Errorf("the report of one side has the field %s: %s", name, v)
		}
	}
	if _, there := fields["userspace_to_node_ready_s"]; !there {
		t.Error("the report of one side does not have the field userspace_to_node_ready_s")
	}
	for _, result := range r.Targets {
		if own := !strings.Contains(result.Figure, "ratio."); own != (result.Met != nil) || result.Other != nil || result.Ratio != nil {
			t.Errorf("%s: %+v", result.Figure, result)
		}
	}
}

// TestCompare checks that a pair has no ratio for a figure that one of its sides lacks. Other pairs
// have this ratio.
func TestCompare(t *testing.T) {
	v := func(f float64) *float64 { return &f }
	start := func(api, kube *float64) *figures {
		return &figures{startFigures: startFigures{APIAfterInit: api, ToKubeAPI: kube}}
	}
	c := compare([]*figures{start(v(1), v(2)), start(v(3), nil), start(v(9), v(9))}, []*figures{start(v(2), v(2)), start(v(2), v(2))})
	want := comparison{
		Ratio:      map[string]float64{"api": 1, "kube_api": 1},
		PairRatios: []map[string]float64{{"api": 0.5, "kube_api": 1}, {"api": 1.5}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, want %+v", c, want)
	}
	if c := compare(nil, []*figures{start(v(1), v(1))}); c.Ratio != nil || c.PairRatios != nil {
		t.Errorf("ratios without a pair: %+v", c)
	}
}

// TestTargetsName checks that each target names an existing figure, and that no two figures have
// the same ratio name.
func TestTargetsName(t *testing.T) {
	known := map[string]bool{}
	for _, n := range new(figures).numbers() {
		if n.ratio != "" && known[n.ratio] {
			t.Errorf("two figures have the ratio %s", n.ratio)
		}
		known[n.ratio] = true
	}
	for _, target := range slices.Concat(baselineTargets, formerTargets, ownTargets) {
		if !known[target.Figure] {
			t.Errorf("no figure has the name %s", target.Figure)
		}
	}
}

func TestFlags(t *testing.T) {
	if o, err := parse(nil); err != nil || o.bootFiles == "" || o.former != nil || o.pairs != 3 || o.command != "go run ./test/bench" {
		t.Errorf("without flags: %+v, %v", o, err)
	}
	if o, err := parse([]string{"-baseline", "", "-pairs", "1"}); err != nil || o.bootFiles != "" || o.pairs != 1 || o.command != "go run ./test/bench -baseline '' -pairs 1" {
		t.Errorf("without a baseline: %+v, %v", o, err)
	}
	for _, args := range [][]string{{"-pairs", "0"}, {"-idle", "0s"}, {"more"}, {"-against", "/nonexistent"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("parse accepts %q", args)
		}
	}
	o := options{ours: system{bundle: "next"}, former: &targets.Former{Version: "0.1.0", Image: "i", Bin: "b", Bundle: "former"}}
	if s := o.releaseOf(); s != (system{"release 0.1.0", "i", "b", "former"}) {
		t.Errorf("%+v", s)
	}
	o.ours.bundle = ""
	if s := o.releaseOf(); s.bundle != "" {
		t.Error("the upgrade is measured on one side only")
	}
}

func TestIdleFigures(t *testing.T) {
	now := time.Now()
	f := newIdleFigures(use{now, time.Second}, use{now.Add(time.Minute), 10 * time.Second},
		machinestate.Use{CPUs: 2, Uptime: 100, Idle: 50, Seconds: map[string]float64{"apid": 1}},
		machinestate.Use{CPUs: 2, Uptime: 160, Idle: 164, Seconds: map[string]float64{"apid": 4, "new": 0.01}})
	if *f.IdleProcessor != 9 || *f.IdleBusy < 5.999 || *f.IdleBusy > 6.001 || !maps.Equal(f.IdleByService, map[string]float64{"apid": 3}) {
		t.Errorf("%v %v %v", *f.IdleProcessor, *f.IdleBusy, f.IdleByService)
	}
}

func TestAgain(t *testing.T) {
	calls := 0
	got, early, err := again("a boot", func() (int, error) {
		if calls++; calls < tries {
			return 0, errEarly
		}
		return 7, nil
	})
	if got != 7 || early != tries-1 || err != nil {
		t.Errorf("a run that ends early only at first: %d, %d early, %v", got, early, err)
	}
	calls = 0
	if _, _, err = again("a boot", func() (int, error) { calls++; return 0, errEarly }); calls != tries || !errors.Is(err, errEarly) {
		t.Errorf("a run that always ends early: %d calls, %v", calls, err)
	}
	calls = 0
	if _, _, err = again("a boot", func() (int, error) { calls++; return 0, errors.New("broken") }); calls != 1 || err == nil {
		t.Errorf("a run that fails: %d calls, %v", calls, err)
	}
}

func TestPlaceEvents(t *testing.T) {
	day := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds float64, source, kind, message string) *api.Event {
		return &api.Event{Time: timestamppb.New(day.Add(time.Duration(seconds * float64(time.Second)))), Source: source, Kind: kind, Message: message}
	}
	// The clock is set an hour forward after the second event. The message of the third event
	// contains its time after the start, 5 s. placeEvents derives from it the times of the events
	// after the change of the clock.
	got := placeEvents([]*api.Event{
		at(1, "host", "operation", "first"), at(2, "boot", "stage", "host after 2.00 s"), at(3605, "boot", "stage", "api after 5.00 s"), at(3606.5, "disk", "operation", "last"),
	})
	for i, want := range []float64{1, 2, 5, 6.5} {
		if d := got[i].Seconds - want; d > 1e-6 || d < -1e-6 {
			t.Errorf("event %d is at %v s, expected %v", i, got[i].Seconds, want)
		}
	}
}

func TestRecord(t *testing.T) {
	r := newRecord()
	if _, err := r.init(); err == nil {
		t.Error("r.init returns a time before a moment was recorded")
	}
	began := time.Now()
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	r.addServices(at(1), []service{{Name: "containerd", State: "starting"}})
	// A moment is a step of the boot with its time in seconds (topic timeline). The first list of
	// moments arrives 2 s after its last moment, and the list with containerd 5 ms after the moment
	// of containerd.
	r.addMoments(at(4), []moment{{Name: "machined", Seconds: 1}, {Name: "host", Seconds: 2}})
	r.addServices(at(4.5), []service{{Name: "containerd", State: "running"}})
	r.addMoments(at(4.405), []moment{{Name: "machined", Seconds: 1}, {Name: "host", Seconds: 2}, {Name: "containerd", Seconds: 4.4}})
	r.addMoments(at(9), []moment{{Name: "machined", Seconds: 1}, {Name: "host", Seconds: 2}, {Name: "containerd", Seconds: 4.4}, {Name: "images", Seconds: 8}})
	init, err := r.init()
	if late := init.Sub(began); err != nil || late != 5*time.Millisecond {
		t.Errorf("init's start is estimated %v late, expected 5ms; %v", late, err)
	}
	if s, ok := r.moment("images"); !ok || s != 8 {
		t.Errorf("images: %v, %v", s, ok)
	}
	list := r.timeline(6, map[string]float64{"seen": 3})
	var names []string
	for _, s := range list {
		names = append(names, s.What)
	}
	if got := strings.Join(names, " "); got != "power on init machined host seen containerd images" {
		t.Errorf("the timeline is %s", got)
	}
	waits := list[5].Waits
	if len(waits) != 1 || waits[0].For != "starting" || waits[0].Seconds < 3.4 || waits[0].Seconds > 3.41 {
		t.Errorf("containerd waited for %+v", waits)
	}
}
