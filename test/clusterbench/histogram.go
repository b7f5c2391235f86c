package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// durations is the API server's own histogram of how long requests took, which upstream's
// objectives are about.
const durations = "apiserver_request_duration_seconds"

// connections are verbs whose requests last as long as somebody watches, or speaks with a pod.
func connections() []string { return []string{"WATCH", "WATCHLIST", "CONNECT"} }

// bucket counts requests that took at most Bound seconds.
type bucket struct {
	bound float64
	count float64
}

// histogram has buckets by their bounds, each of which counts those below it too; the last bound is
// infinite.
type histogram []bucket

// latencies are the histograms of the API server, by verb.
type latencies map[string]histogram

// readLatencies reads the API server's /metrics, and sums up what is of the same verb.
func readLatencies(text io.Reader) (latencies, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("metrics of the API server: %w", err)
	}
	family := families[durations]
	if family == nil {
		return nil, fmt.Errorf("metrics of the API server: there is no %s", durations)
	}
	sums := map[string]map[float64]float64{}
	for _, m := range family.Metric {
		verb := labelOf(m, "verb")
		if slices.Contains(connections(), verb) || labelOf(m, "resource") == "" {
			// those of no resource are questions for health, for these figures, and for what there
			// is
			continue
		}
		if sums[verb] == nil {
			sums[verb] = map[float64]float64{}
		}
		for _, b := range m.GetHistogram().GetBucket() {
			sums[verb][b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	all := latencies{}
	for verb, counts := range sums {
		for _, bound := range slices.Sorted(maps.Keys(counts)) {
			all[verb] = append(all[verb], bucket{bound, counts[bound]})
		}
	}
	return all, nil
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// since is what was counted after before. An API server that began anew has counted all that it has
// since then.
func (l latencies) since(before latencies) latencies {
	out := latencies{}
	for verb, h := range l {
		was := map[float64]float64{}
		for _, b := range before[verb] {
			was[b.bound] = b.count
		}
		if before[verb].total() > h.total() {
			clear(was)
		}
		for _, b := range h {
			out[verb] = append(out[verb], bucket{b.bound, b.count - was[b.bound]})
		}
	}
	return out
}

// total is how many requests there were.
func (h histogram) total() float64 {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1].count
}

// quantile is the time in seconds within which the share q of the requests was answered: of a
// bucket, in which all is taken to be spread evenly, as Prometheus' histogram_quantile does it.
// What took longer than the last finite bound is said to have taken that.
func (h histogram) quantile(q float64) float64 {
	rank := q * h.total()
	below, least := 0.0, 0.0
	for i, b := range h {
		if b.count >= rank && b.count > below {
			if math.IsInf(b.bound, 1) {
				return least
			}
			return least + (b.bound-least)*(rank-below)/(b.count-below)
		}
		below = b.count
		if i < len(h)-1 {
			least = b.bound
		}
	}
	return least
}

// verbLatency is how long requests of a verb took.
type verbLatency struct {
	Verb     string  `json:"verb"`
	Requests float64 `json:"requests"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
}

// table is the latencies of the verbs that were used, those with most requests first.
func (l latencies) table() []verbLatency {
	var all []verbLatency
	for verb, h := range l {
		if n := h.total(); n > 0 {
			all = append(all, verbLatency{verb, n, 1000 * h.quantile(0.5), 1000 * h.quantile(0.99)})
		}
	}
	slices.SortFunc(all, func(a, b verbLatency) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Verb, b.Verb))
	})
	return all
}

// percentile is the value below which the share q of the values is, by rank: one of them. There are
// some.
func percentile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
