package main

import (
	"slices"

	"github.com/orlop-os/orlop/test/targets"
)

// These are the targets for the figures of a machine. Figure is a name in figure.ratio.
var (
	// targets for ratios with the baseline
	baselineTargets = []targets.Target{
		{Figure: "kube_api", Ratio: true, AtMost: 0.65},
		{Figure: "node_ready", Ratio: true, AtMost: 0.5},
		{Figure: "pod_running", Ratio: true, AtMost: 0.5},
		{Figure: "memory", Ratio: true, AtMost: 0.6},
	}
	// targets for ratios with a former release
	formerTargets = []targets.Target{
		{Figure: "api", Ratio: true, AtMost: 0.6},
		{Figure: "kube_api", Ratio: true, Shown: true},
		{Figure: "node_ready", Ratio: true, Shown: true},
		{Figure: "pod_running", Ratio: true, Shown: true},
		{Figure: "memory", Ratio: true, Shown: true},
		{Figure: "upgrade", Ratio: true, AtMost: 0.6},
		{Figure: "upgrade_api_outage", Ratio: true, AtMost: 0.7},
		{Figure: "idle_processor", Ratio: true, AtMost: 0.5},
		{Figure: "flood_p99", Ratio: true, Shown: true},
	}
	// targets for our own figures; the report also shows the figures of a former release
	ownTargets = []targets.Target{
		{Figure: "flood_ratio", AtMost: 2},
		{Figure: "artifact_mib", AtMost: 90},
	}
)

// other is a side with which our figures are compared.
type other struct {
	name      string
	figures   *figures
	runs      []*figures
	earlyEnds int
	comparison
}

// release returns the side of the former release. Its figures are nil if the release was not
// measured.
func (r *report) release() other {
	if r.Against == nil {
		return other{}
	}
	a := r.Against
	return other{a.Version, &a.figures, figuresOf(a.Runs), a.EarlyEnds, a.comparison}
}

// baseline returns the side of the baseline. Its figures are nil if the baseline was not measured.
func (r *report) baseline() other {
	if r.Baseline == nil {
		return other{}
	}
	b := r.Baseline
	return other{"the baseline", &b.figures, baselineFigures(b.Runs), b.EarlyEnds, r.comparison}
}

// sides returns the measured sides with which our figures are compared.
func (r *report) sides() []other {
	return slices.DeleteFunc([]other{r.release(), r.baseline()}, func(o other) bool { return o.figures == nil })
}

// results returns the result of each target.
func (r *report) results() []targets.Result {
	var all []targets.Result
	for _, group := range []struct {
		prefix string
		with   other
		list   []targets.Target
	}{{"ratio.", r.baseline(), baselineTargets}, {"against.ratio.", r.release(), formerTargets}, {"", r.release(), ownTargets}} {
		for _, t := range group.list {
			all = append(all, r.result(t, group.prefix, group.with))
		}
	}
	return all
}

func (r *report) result(t targets.Target, prefix string, with other) targets.Result {
	named := func(f figure) bool { return f.ratio == t.Figure }
	ours := r.numbers()
	i := slices.IndexFunc(ours, named)
	t.What, t.Unit = ours[i].what, ours[i].unit
	m := targets.Measured{Ours: *ours[i].at}
	if with.figures != nil {
		m.With, m.Other = with.name, *with.figures.numbers()[i].at
		if q, ok := with.Ratio[t.Figure]; ok {
			m.Ratio = &q
		}
		for _, pair := range with.PairRatios {
			if q, ok := pair[t.Figure]; ok {
				m.Pairs = append(m.Pairs, q)
			}
		}
	}
	t.Figure = prefix + t.Figure
	return t.Result(m)
}
