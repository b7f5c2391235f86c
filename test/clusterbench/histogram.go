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

// durations is the API server's histogram of request durations. The service level objectives of
// Kubernetes refer to this metric.
const durations = "apiserver_request_duration_seconds"

// connections returns the verbs of requests that last until the client ends a watch or its
// connection to a pod.
func connections() []string { return []string{"WATCH", "WATCHLIST", "CONNECT"} }

// bucket is the number of requests that took at most bound seconds.
type bucket struct {
	bound float64
	count float64
}

// histogram is a list of cumulative buckets, in ascending order of their bounds. The last bound is
// infinite.
type histogram []bucket

// latencies are the histograms of the API server. The key is the verb.
type latencies map[string]histogram

// readLatencies reads the text of the API server's /metrics, and adds up the histograms of each
// verb. It omits long-lived connections and requests without a resource.
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
			// Requests without a resource are health checks, requests for these metrics, and
			// discovery.
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

// The method since returns the counts of the requests since an earlier read, whose histograms are
// in before. If the total of a verb is lower than before, the API server has restarted. In this
// case, the method returns all counts of this verb.
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

// total returns the number of all requests in the histogram.
func (h histogram) total() float64 {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1].count
}

// quantile returns the duration in seconds that the share q of the requests did not exceed. It
// interpolates linearly within a bucket, like histogram_quantile of Prometheus. Requests above the
// last finite bound count as requests with that bound. The result is 0 for an empty histogram.
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

// verbLatency holds the number of requests with a verb, and the 50th and 99th percentile of their
// durations.
type verbLatency struct {
	Verb     string  `json:"verb"`
	Requests float64 `json:"requests"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
}

// table returns the latencies of each verb with at least one request, in descending order of the
// number of requests.
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

// percentile returns the smallest value v for which at least the share q of the values is v or
// less. The list of values must not be empty.
func percentile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
