package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/test/targets"
)

func number(v float64) *float64 { return &v }

// comparedRuns returns measurements of both sides. The blackout has two complete pairs and a third
// pair without a figure of the former release. The part scale has one pair.
func comparedRuns() []measured {
	blackout := func(pair int, former bool, back float64) measured {
		f := &blackoutFigures{PodsBack: &back}
		return measured{pair, former, "blackout", f}
	}
	scale := func(former bool, running int, p99 float64) measured {
		f := &scaleFigures{Runs: []scaleRun{
			{Nodes: 200, Pods: 1000, Running: 1000, CreateS: number(20), API: []verbLatency{{Verb: "PUT", P99Ms: 500}}},
			{Nodes: 1000, Pods: 5000, Running: running, API: []verbLatency{{Verb: "GET", P99Ms: 7}, {Verb: "PUT", P99Ms: p99}}},
		}}
		return measured{1, former, "scale", f}
	}
	return []measured{
		blackout(1, false, 90), blackout(1, true, 180), scale(false, 5000, 400), scale(true, 2876, 938),
		blackout(2, true, 150), blackout(2, false, 105), blackout(3, false, 500), {3, true, "blackout", &blackoutFigures{}},
	}
}

func TestCompare(t *testing.T) {
	list := comparedRuns()
	if got := ratios(list, "blackout.poweron_to_pods_back_s"); !slices.Equal(got, []float64{0.5, 0.7}) {
		t.Errorf("ratios of the blackout: %v", got)
	}
	if got := ratios(list, "scale.1000.not_running"); !slices.Equal(got, []float64{0}) {
		t.Errorf("ratios of the pods that do not run: %v", got)
	}
	if got := ratios(list, "scale.200.not_running"); got != nil {
		t.Errorf("ratios with a former value of 0: %v, want none", got)
	}
	a := against{}
	a.compare(list)
	if a.Ratio["blackout.poweron_to_pods_back_s"] != 0.6 || a.Ratio["scale.200.put_p99_ms"] != 1 || len(a.PairRatios["scale.1000.put_p99_ms"]) != 1 {
		t.Errorf("%+v", a)
	}
	if unfinished := (&scaleFigures{Runs: []scaleRun{{Nodes: 1000, Pods: 5000}}}).values(); len(unfinished) != 0 {
		t.Errorf("figures of a run without latencies: %v, want none", unfinished)
	}
	failed := &scaleFigures{outcome: outcome{Error: "the load has failed"}, Runs: []scaleRun{
		{Nodes: 200, API: []verbLatency{{Verb: "PUT", P99Ms: 500}}}, {Nodes: 1000, API: []verbLatency{{Verb: "PUT", P99Ms: 1}}},
	}}
	if v := failed.values(); v["scale.200.put_p99_ms"] != 500 || len(v) != 3 {
		t.Errorf("figures of a load that failed: %v", v)
	}
	var out strings.Builder
	if err := targets.Write(&out, "go run ./test/clusterbench -only blackout,scale -pairs 2", results(list, "0.1.0")); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, out.String(), "targets.md")
}

// TestTargetsName checks that each target names a figure of a comparable part.
func TestTargetsName(t *testing.T) {
	figures := []figures{
		&createFigures{AllReady: number(1)}, &memoryFigures{ControlPlane: number(1), Worker: number(1)}, &blackoutFigures{PodsBack: number(1)},
		&podsFigures{AtOnce: &podStarts{}, OneByOne: &podStarts{}}, &scaleFigures{Runs: []scaleRun{{Nodes: 1000, API: []verbLatency{{Verb: "PUT"}}}}},
	}
	known := values{}
	for _, f := range figures {
		for name := range f.values() {
			known[name] = 1
		}
	}
	for _, target := range clusterTargets {
		part, _, _ := strings.Cut(target.Figure, ".")
		if known[target.Figure] == 0 || !slices.Contains(comparable, part) {
			t.Errorf("no figure has the name %s", target.Figure)
		}
	}
	for _, name := range comparable {
		if !slices.Contains(names(), name) {
			t.Errorf("there is no part %s", name)
		}
	}
}

func TestSides(t *testing.T) {
	o := options{image: "i", bin: "b", only: []string{"create", "join", "failover", "pods"}}
	if s := o.sides(); len(s) != 1 || s[0].former || !slices.Equal(s[0].only, o.only) {
		t.Errorf("%+v", s)
	}
	o.former = &targets.Former{Image: "fi", Bin: "fb"}
	want := side{dir: "release", image: "fi", bin: "fb", former: true, only: []string{"create", "pods"}}
	if s := o.sides(); len(s) != 2 || !reflect.DeepEqual(s[1], want) || len(s[0].only) != 4 {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// TestRecordOfRelease checks that the file retains the figures of a former release until another
// release is measured.
func TestRecordOfRelease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	content := func() (got struct {
		Blackout blackoutFigures
		Against  against
		Targets  []targets.Result
	}) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var whole struct{ Cluster json.RawMessage }
		if err := json.Unmarshal(text, &whole); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(whole.Cluster, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	add := func(former string, list ...measured) {
		t.Helper()
		r := record{file: file, former: former}
		if err := r.read(); err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if err := r.add(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := comparedRuns()
	add("0.1.0", list[0], list[1])
	add("0.1.0", list[2], list[3])
	got := content()
	if got.Against.Version != "0.1.0" || len(got.Against.Parts) != 2 || got.Against.Ratio["blackout.poweron_to_pods_back_s"] != 0.5 || got.Against.Ratio["scale.1000.not_running"] != 0 ||
		*got.Blackout.PodsBack != 90 || len(got.Targets) != 3 || !*got.Targets[0].Met {
		t.Errorf("%+v", got)
	}
	add("", measured{1, false, "blackout", &blackoutFigures{PodsBack: number(70)}})
	if got = content(); got.Against.Version != "0.1.0" || *got.Blackout.PodsBack != 70 || len(got.Targets) != 3 || got.Targets[0].Met != nil {
		t.Errorf("without a release: %+v", got)
	}
	add("0.2.0", list[3])
	if got = content(); got.Against.Version != "0.2.0" || len(got.Against.Parts) != 1 || len(got.Against.Ratio) != 0 {
		t.Errorf("with another release: %+v", got.Against)
	}
}
