package metrics

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
)

// sample is the usage of a node or a container at a moment.
type sample struct {
	at      time.Time
	cpu     float64   // processor time since its start, in seconds of one core
	memory  float64   // working set, bytes
	started time.Time // zero if unknown
}

// report is a kubelet's report about its node and the containers there.
type report struct {
	node sample // zero if missing
	pods map[types.NamespacedName]map[string]sample
}

// The metric names in a kubelet's response to /metrics/resource
// (kubernetes/pkg/kubelet/metrics/collectors/resource_metrics.go). Upstream guarantees all but the
// last as stable.
const (
	nodeCPU          = "node_cpu_usage_seconds_total"
	nodeMemory       = "node_memory_working_set_bytes"
	containerCPU     = "container_cpu_usage_seconds_total"
	containerMemory  = "container_memory_working_set_bytes"
	containerStarted = "container_start_time_seconds"
)

// parse parses a kubelet's response in the text format of Prometheus. received is the time of
// samples without a timestamp. A container without both processor time and memory does not run, or
// not yet, and is omitted. A compromised node can send any text: the parser sees only lines of the
// wanted metrics, and a panic of the parser becomes an error instead of ending this process.
func parse(text io.Reader, received time.Time) (r report, err error) {
	defer func() {
		if why := recover(); why != nil {
			r, err = report{}, fmt.Errorf("cannot read the metrics: %v", why)
		}
	}()
	wanted, err := only(text)
	if err != nil {
		return report{}, fmt.Errorf("cannot read the metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(wanted)
	if err != nil {
		return report{}, fmt.Errorf("cannot read the metrics: %w", err)
	}
	r = report{pods: map[types.NamespacedName]map[string]sample{}}
	memory := map[container]float64{}
	for _, m := range families[containerMemory].GetMetric() {
		memory[containerOf(m)] = value(m)
	}
	started := map[container]time.Time{}
	for _, m := range families[containerStarted].GetMetric() {
		if v := value(m); v > 0 {
			started[containerOf(m)] = time.UnixMilli(int64(v * 1000))
		}
	}
	for _, m := range families[containerCPU].GetMetric() {
		c := containerOf(m)
		s := sample{at: timeOf(m, received), cpu: value(m), memory: memory[c], started: started[c]}
		if s.cpu == 0 || s.memory == 0 {
			continue
		}
		if r.pods[c.pod] == nil {
			r.pods[c.pod] = map[string]sample{}
		}
		r.pods[c.pod][c.name] = s
	}
	cpu, working := families[nodeCPU].GetMetric(), families[nodeMemory].GetMetric()
	if len(cpu) == 1 && len(working) == 1 {
		if s := (sample{at: timeOf(cpu[0], received), cpu: value(cpu[0]), memory: value(working[0])}); s.cpu > 0 && s.memory > 0 {
			r.node = s
		}
	}
	return r, nil
}

// only returns the lines of a text that are samples or types of the wanted metrics.
func only(text io.Reader) (io.Reader, error) {
	names := []string{nodeCPU, nodeMemory, containerCPU, containerMemory, containerStarted}
	kept := &bytes.Buffer{}
	lines := bufio.NewScanner(text) // of at most 64 KiB
	for lines.Scan() {
		line := bytes.TrimPrefix(lines.Bytes(), []byte("# TYPE "))
		end := bytes.IndexAny(line, "{ \t")
		if end > 0 && slices.Contains(names, string(line[:end])) {
			kept.Write(lines.Bytes())
			kept.WriteByte('\n')
		}
	}
	return kept, lines.Err()
}

// container identifies a container of the cluster.
type container struct {
	pod  types.NamespacedName
	name string
}

func containerOf(m *dto.Metric) container {
	var c container
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "namespace":
			c.pod.Namespace = l.GetValue()
		case "pod":
			c.pod.Name = l.GetValue()
		case "container":
			c.name = l.GetValue()
		}
	}
	return c
}

// value returns the value of a counter or a gauge. A value that is no amount (negative, infinite,
// not a number) counts as 0.
func value(m *dto.Metric) float64 {
	var v float64
	switch {
	case m.GetCounter() != nil:
		v = m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		v = m.GetGauge().GetValue()
	case m.GetUntyped() != nil:
		v = m.GetUntyped().GetValue()
	}
	if !(v > 0) || v > math.MaxInt64 {
		return 0
	}
	return v
}

// timeOf returns the time of the sample. A time in the future or before 1970 is ignored.
func timeOf(m *dto.Metric, received time.Time) time.Time {
	if at := time.UnixMilli(m.GetTimestampMs()); m.GetTimestampMs() > 0 && !at.After(received.Add(future)) {
		return at
	}
	return received
}

// future is how far another machine's clock may be ahead.
const future = time.Minute
