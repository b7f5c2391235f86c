package main

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const metricsText = `# HELP apiserver_request_duration_seconds Response latency distribution in seconds.
# TYPE apiserver_request_duration_seconds histogram
apiserver_request_duration_seconds_bucket{verb="GET",resource="pods",le="0.1"} 50
apiserver_request_duration_seconds_bucket{verb="GET",resource="pods",le="0.2"} 100
apiserver_request_duration_seconds_bucket{verb="GET",resource="pods",le="+Inf"} 100
apiserver_request_duration_seconds_sum{verb="GET",resource="pods"} 10
apiserver_request_duration_seconds_count{verb="GET",resource="pods"} 100
apiserver_request_duration_seconds_bucket{verb="GET",resource="nodes",le="0.1"} 0
apiserver_request_duration_seconds_bucket{verb="GET",resource="nodes",le="0.2"} 90
apiserver_request_duration_seconds_bucket{verb="GET",resource="nodes",le="+Inf"} 100
apiserver_request_duration_seconds_sum{verb="GET",resource="nodes"} 10
apiserver_request_duration_seconds_count{verb="GET",resource="nodes"} 100
apiserver_request_duration_seconds_bucket{verb="GET",resource="",subresource="/readyz",le="0.1"} 9
apiserver_request_duration_seconds_bucket{verb="GET",resource="",subresource="/readyz",le="+Inf"} 9
apiserver_request_duration_seconds_sum{verb="GET",resource="",subresource="/readyz"} 1
apiserver_request_duration_seconds_count{verb="GET",resource="",subresource="/readyz"} 9
apiserver_request_duration_seconds_bucket{verb="WATCH",resource="nodes",le="0.1"} 0
apiserver_request_duration_seconds_bucket{verb="WATCH",resource="nodes",le="+Inf"} 5
apiserver_request_duration_seconds_sum{verb="WATCH",resource="nodes"} 1000
apiserver_request_duration_seconds_count{verb="WATCH",resource="nodes"} 5
`

func TestLatencies(t *testing.T) {
	l, err := readLatencies(strings.NewReader(metricsText))
	if err != nil {
		t.Fatal(err)
	}
	want := histogram{{0.1, 50}, {0.2, 190}, {math.Inf(1), 200}}
	if len(l) != 1 || !slices.Equal(l["GET"], want) {
		t.Errorf("got %v, want GET %v and no watches", l, want)
	}
	table := l.table()
	if len(table) != 1 || table[0].Requests != 200 || math.Abs(table[0].P50Ms-(100+100*50.0/140)) > 0.01 || table[0].P99Ms != 200 {
		t.Errorf("%+v", table)
	}
	// The method since subtracts the counts of an earlier read. A restarted API server counts from
	// 0, so the method since subtracts nothing from its counts.
	before := latencies{"GET": {{0.1, 50}, {0.2, 100}, {math.Inf(1), 100}}}
	if got := l.since(before)["GET"]; !slices.Equal(got, histogram{{0.1, 0}, {0.2, 90}, {math.Inf(1), 100}}) {
		t.Errorf("the method since returns %v", got)
	}
	if got := l.since(latencies{"GET": {{0.1, 0}, {math.Inf(1), 300}}})["GET"]; !slices.Equal(got, want) {
		t.Errorf("the method since returns %v for a restarted API server", got)
	}
	for _, text := range []string{"", "{", "# TYPE other counter\nother 1\n"} {
		if _, err := readLatencies(strings.NewReader(text)); err == nil {
			t.Errorf("readLatencies accepts %q", text)
		}
	}
}

func TestQuantile(t *testing.T) {
	even := histogram{{1, 10}, {2, 20}, {3, 20}, {math.Inf(1), 20}}
	for _, c := range []struct {
		h       histogram
		q, want float64
	}{
		{even, 0.5, 1}, {even, 0.25, 0.5}, {even, 0.75, 1.5}, {even, 1, 2},
		{histogram{{1, 0}, {math.Inf(1), 5}}, 0.5, 1},
		{histogram{{1, 5}, {math.Inf(1), 5}}, 0.99, 0.99},
		{nil, 0.5, 0},
	} {
		if got := c.h.quantile(c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v of %v: %v, want %v", c.q, c.h, got, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		values  []float64
		q, want float64
	}{{hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1}, {[]float64{7}, 0.99, 7}, {[]float64{3, 1, 2}, 0.5, 2}} {
		if got := percentile(c.values, c.q); got != c.want {
			t.Errorf("%v of %v: %v, want %v", c.q, c.values, got, c.want)
		}
	}
}

func TestPodTimes(t *testing.T) {
	times := podTimes{"a": {created: at(0)}, "b": {created: at(1)}}
	p := func(name, node string, phase core.PodPhase, ready core.ConditionStatus) *core.Pod {
		return &core.Pod{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: core.PodSpec{NodeName: node}, Status: core.PodStatus{Phase: phase, Conditions: []core.PodCondition{{Type: core.PodReady, Status: ready}}}}
	}
	times.see(p("a", "", core.PodPending, core.ConditionFalse), at(1))
	times.see(p("a", "w1", core.PodPending, core.ConditionFalse), at(2))
	times.see(p("a", "w1", core.PodRunning, core.ConditionFalse), at(4))
	times.see(p("a", "w1", core.PodRunning, core.ConditionTrue), at(5))
	times.see(p("a", "w1", core.PodRunning, core.ConditionTrue), at(9))
	times.see(p("else", "w1", core.PodRunning, core.ConditionTrue), at(9))
	if times.allReady() {
		t.Error("allReady returns true before pod b is Ready")
	}
	if got := times.figures(); got == nil || *got != (podStarts{Pods: 1, RunningP50: 2, RunningP99: 2, ReadyP50: 3, ReadyP99: 3, CreatedP50: 5, CreatedP99: 5, AllReadyS: 5}) {
		t.Errorf("%+v", got)
	}
	// The watch delivers pod b for the first time when it is Ready.
	times.see(p("b", "w2", core.PodRunning, core.ConditionTrue), at(11))
	if got := times.figures(); !times.allReady() || got.Pods != 2 || got.ReadyP50 != 0 || got.ReadyP99 != 3 || got.AllReadyS != 11 {
		t.Errorf("%+v", got)
	}
	if got := (podTimes{"c": {created: at(0)}}).figures(); got != nil {
		t.Errorf("figures of pods that never became Ready: %+v, want nil", got)
	}
}

func TestRolled(t *testing.T) {
	d := func(generation int64, updated, available, all int32) *apps.Deployment {
		return &apps.Deployment{ObjectMeta: meta.ObjectMeta{Generation: 2}, Status: apps.DeploymentStatus{ObservedGeneration: generation, UpdatedReplicas: updated, AvailableReplicas: available, Replicas: all}}
	}
	if !rolled(d(2, 5, 5, 5), 5) {
		t.Error("rolled returns false for a complete rollout")
	}
	for _, unfinished := range []*apps.Deployment{d(1, 5, 5, 5), d(2, 4, 5, 5), d(2, 5, 4, 5), d(2, 5, 5, 6)} {
		if rolled(unfinished, 5) {
			t.Errorf("rolled returns true for the incomplete rollout %+v", unfinished.Status)
		}
	}
}

// TestHalf checks that the time limit for a half of the load leaves enough time to read the figures
// before the deadline of the context.
func TestHalf(t *testing.T) {
	b := &bench{options: options{load: time.Minute}}
	if got := b.half(t.Context(), 2); got != time.Minute {
		t.Errorf("without a deadline: %s", got)
	}
	for _, c := range []struct {
		left time.Duration
		n    int
		most time.Duration
	}{{time.Hour, 2, time.Minute}, {sumUpTime + 30*time.Second, 2, 15 * time.Second}, {sumUpTime + 30*time.Second, 1, 30 * time.Second}, {time.Second, 1, 0}} {
		ctx, cancel := context.WithTimeout(t.Context(), c.left)
		if got := b.half(ctx, c.n); got > c.most || got < c.most-time.Second {
			t.Errorf("%s before the deadline: %s, want %s", c.left, got, c.most)
		}
		cancel()
	}
}

// TestLoadIsForSimulatedNodes checks that the pods of the load can run on simulated nodes only.
func TestLoadIsForSimulatedNodes(t *testing.T) {
	spec := loadObject(3).Spec.Template.Spec
	if len(spec.NodeSelector) != 1 || len(spec.Tolerations) != 1 || spec.Tolerations[0].Effect != "" || spec.Tolerations[0].Key == "" {
		t.Errorf("%+v", spec)
	}
}
