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

// sample is one measurement of a node or a container.
type sample struct {
	at      time.Time
	cpu     float64   // processor time since the start, in seconds of one core
	memory  float64   // working set in bytes
	started time.Time // start of the container; zero if unknown
}

// report contains the samples of one response of a kubelet: of its node and of the containers on
// the node.
type report struct {
	node sample // zero if the response has none
	pods map[types.NamespacedName]map[string]sample
}

// These are the names of the metrics in the response of a kubelet to /metrics/resource
// (kubernetes/pkg/kubelet/metrics/collectors/resource_metrics.go). Kubernetes guarantees that all
// names but the last stay.
const (
	nodeCPU          = "node_cpu_usage_seconds_total"
	nodeMemory       = "node_memory_working_set_bytes"
	containerCPU     = "container_cpu_usage_seconds_total"
	containerMemory  = "container_memory_working_set_bytes"
	containerStarted = "container_start_time_seconds"
)

// parse parses the response of a kubelet, which is in the text format of Prometheus. A sample
// without a timestamp gets the time received. parse omits a container if its processor time or its
// memory is 0 or missing, because such a container does not run.
//
// A compromised node can send any text. The parser therefore gets only the lines of the wanted
// metrics, and parse returns an error if the parser panics.
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

// only returns the lines of a text that contain a sample or the type of a wanted metric. It fails
// if a line is longer than 64 KiB.
func only(text io.Reader) (io.Reader, error) {
	names := []string{nodeCPU, nodeMemory, containerCPU, containerMemory, containerStarted}
	kept := &bytes.Buffer{}
	lines := bufio.NewScanner(text) // lines of at most 64 KiB
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

// container identifies a container by its pod and its name.
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

// value returns the value of a counter or a gauge. It returns 0 for a value that is negative,
// infinite or not a number.
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

// timeOf returns the timestamp of a sample. Without a timestamp after 1970, or if the timestamp is
// too far in the future, it returns received.
func timeOf(m *dto.Metric, received time.Time) time.Time {
	if at := time.UnixMilli(m.GetTimestampMs()); m.GetTimestampMs() > 0 && !at.After(received.Add(future)) {
		return at
	}
	return received
}

// future is how far the clock of another machine can be ahead of the clock of this machine.
const future = time.Minute
