package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/orlop-os/orlop/test/targets"
)

// comparable are the parts that are also measured on a former release. The other parts use calls
// and reports of the management API that can differ between releases.
var comparable = []string{"create", "memory", "blackout", "pods", "scale"}

// clusterTargets are the targets for the figures of a cluster. Figure is a name in values. A ratio
// compares with a former release.
var clusterTargets = []targets.Target{
	{Figure: "blackout.poweron_to_pods_back_s", What: "power cut of all machines → all pods Ready", Unit: "s", Ratio: true, AtMost: 0.6},
	{Figure: "scale.1000.not_running", What: "pods on 1000 simulated nodes that do not run in time", AtMost: 0},
	{Figure: "scale.1000.put_p99_ms", What: "p99 of PUT under this load", Unit: "ms", Ratio: true, AtMost: 0.5},
	{Figure: "pods.one_by_one.scheduled_to_ready_p50_s", What: "a pod, one by one: scheduled → Ready, p50", Unit: "s", Ratio: true, AtMost: 0.7},
	{Figure: "create.poweron_to_all_ready_s", What: "power-on → all Nodes Ready", Unit: "s", Ratio: true, Shown: true},
	{Figure: "memory.control_plane_used_mib", What: "memory used by a control-plane machine", Unit: "MiB", Ratio: true, Shown: true},
	{Figure: "memory.worker_used_mib", What: "memory used by a worker", Unit: "MiB", Ratio: true, Shown: true},
	{Figure: "pods.at_once.all_ready_s", What: "pods at once on a worker: all Ready", Unit: "s", Ratio: true, Shown: true},
}

// values are the comparable figures of a part. The keys are the paths of the figures in the file.
type values map[string]float64

// add adds a figure if it was measured.
func (v values) add(name string, value *float64) {
	if value != nil {
		v[name] = *value
	}
}

// values returns nil. It is the default for parts that are not compared.
func (o *outcome) values() values { return nil }

func (f *createFigures) values() values {
	v := values{}
	v.add("create.poweron_to_all_ready_s", f.AllReady)
	return v
}

func (f *memoryFigures) values() values {
	v := values{}
	v.add("memory.control_plane_used_mib", f.ControlPlane)
	v.add("memory.worker_used_mib", f.Worker)
	return v
}

func (f *blackoutFigures) values() values {
	v := values{}
	v.add("blackout.poweron_to_api_s", f.API)
	v.add("blackout.poweron_to_all_ready_s", f.AllReady)
	v.add("blackout.poweron_to_pods_back_s", f.PodsBack)
	return v
}

func (f *podsFigures) values() values {
	v := values{}
	if f.AtOnce != nil {
		v["pods.at_once.all_ready_s"] = f.AtOnce.AllReadyS
	}
	if f.OneByOne != nil {
		v["pods.one_by_one.scheduled_to_ready_p50_s"] = f.OneByOne.ReadyP50
	}
	return v
}

func (f *scaleFigures) values() values {
	v := values{}
	for i, r := range f.Runs {
		name := fmt.Sprintf("scale.%d.", r.Nodes)
		// An error ends the last run before its load was complete. The API server answers faster
		// under an incomplete load, so these latencies are not comparable.
		if failed := f.Error != "" && i == len(f.Runs)-1; failed || r.API == nil {
			continue
		}
		v[name+"not_running"] = float64(r.Pods - r.Running)
		v.add(name+"create_s", r.CreateS)
		v.add(name+"register_s", r.RegisterS)
		for _, l := range r.API {
			if l.Verb == "PUT" {
				v[name+"put_p50_ms"], v[name+"put_p99_ms"] = l.P50Ms, l.P99Ms
			}
		}
	}
	return v
}

// measured is one measurement of a part in this run.
type measured struct {
	pair   int  // from 1
	former bool // whether the former release was measured
	name   string
	figures
}

// against is the field with the figures of a former release. Figures of an earlier run remain in
// the file if they belong to the same release and this run did not measure them.
type against struct {
	Version string                     `json:"version"`
	Parts   map[string]json.RawMessage `json:"parts"`
	// Ratio has our figures divided by the figures of the release: the median of each list in
	// PairRatios.
	Ratio      map[string]float64   `json:"ratio,omitempty"`
	PairRatios map[string][]float64 `json:"pair_ratios,omitempty"`
}

// pairs returns the values of a figure, by the number of the pair, for the former release or for
// our version.
func pairs(list []measured, former bool, name string) map[int]float64 {
	out := map[int]float64{}
	for _, m := range list {
		if v, ok := m.figures.values()[name]; ok && m.former == former {
			out[m.pair] = v
		}
	}
	return out
}

// median returns the median of the values of all pairs. It returns nil if there is no pair.
func median(byPair map[int]float64) *float64 {
	return targets.Median(slices.Collect(maps.Values(byPair)))
}

// ratios returns our value divided by the former value, for each pair in which both sides have the
// figure. It omits pairs in which the former value is 0.
func ratios(list []measured, name string) []float64 {
	ours, theirs := pairs(list, false, name), pairs(list, true, name)
	var out []float64
	for _, pair := range slices.Sorted(maps.Keys(ours)) {
		a := ours[pair]
		if b, ok := theirs[pair]; ok && b != 0 {
			out = append(out, a/b)
		}
	}
	return out
}

// valueNames returns the sorted names of all figures that can be compared.
func valueNames(list []measured) []string {
	all := map[string]bool{}
	for _, m := range list {
		for name := range m.figures.values() {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// compare stores the ratios of the measurements in the list.
func (a *against) compare(list []measured) {
	for _, name := range valueNames(list) {
		if q := ratios(list, name); len(q) > 0 {
			if a.Ratio == nil {
				a.Ratio, a.PairRatios = map[string]float64{}, map[string][]float64{}
			}
			a.Ratio[name], a.PairRatios[name] = *targets.Median(q), q
		}
	}
}

// results returns the result of each target for the measurements of this run. The parameter version
// is the version of the former release, or empty if there is no former release.
func results(list []measured, version string) []targets.Result {
	var all []targets.Result
	for _, t := range clusterTargets {
		m := targets.Measured{Ours: median(pairs(list, false, t.Figure))}
		if other := median(pairs(list, true, t.Figure)); other != nil {
			m.Other, m.With = other, version
			m.Pairs = ratios(list, t.Figure)
			m.Ratio = targets.Median(m.Pairs)
		}
		if m.Ours == nil && t.Shown {
			continue
		}
		all = append(all, t.Result(m))
	}
	return all
}
