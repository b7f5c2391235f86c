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

// durations is the API server's own histogram of request durations, to which upstream's objectives
// refer.
const durations = "apiserver_request_duration_seconds"

// connections are verbs whose requests last as long as a client watches or is connected to a pod.
func connections() []string { return []string{"WATCH", "WATCHLIST", "CONNECT"} }

// bucket counts requests that took at most Bound seconds.
type bucket struct {
	bound float64
	count float64
}

// histogram has cumulative buckets in the order of their bounds; the last bound is infinite.
type histogram []bucket

// latencies are the histograms of the API server, by verb.
type latencies map[string]histogram

// readLatencies reads the API server's /metrics, and sums up the histograms with the same verb.
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
			// requests without a resource are health checks, requests for these metrics, and
			// discovery
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

// since returns the counts after before. A restarted API server has counted all its requests after
// before.
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

// total returns the number of requests.
func (h histogram) total() float64 {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1].count
}

// quantile returns the time in seconds within which the share q of the requests was answered. It
// interpolates linearly within a bucket, like Prometheus' histogram_quantile. Slower requests than
// the last finite bound count as that bound.
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

// verbLatency holds the request durations of a verb.
type verbLatency struct {
	Verb     string  `json:"verb"`
	Requests float64 `json:"requests"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
}

// table returns the latencies of the used verbs, sorted by descending number of requests.
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

// percentile returns the value below which the share q of the values is, by rank. The result is one
// of the values, and there must be values.
func percentile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
