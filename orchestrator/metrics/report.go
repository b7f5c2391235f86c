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

// sample is what a node or a container had used at one moment.
type sample struct {
	at      time.Time
	cpu     float64   // processor time since it started, in seconds of one core
	memory  float64   // working set, bytes
	started time.Time // zero when nobody says
}

// report is what one kubelet tells about its node and the containers there.
type report struct {
	node sample // zero when it does not tell
	pods map[types.NamespacedName]map[string]sample
}

// The names in a kubelet's answer to /metrics/resource
// (kubernetes/pkg/kubelet/metrics/collectors/resource_metrics.go). All but the last are stable, by
// upstream's promise.
const (
	nodeCPU          = "node_cpu_usage_seconds_total"
	nodeMemory       = "node_memory_working_set_bytes"
	containerCPU     = "container_cpu_usage_seconds_total"
	containerMemory  = "container_memory_working_set_bytes"
	containerStarted = "container_start_time_seconds"
)

// parse reads a kubelet's answer, in the text format of Prometheus. received is the time of samples
// that have none. What has not both processor time and memory does not run, or not yet, and is left
// out. Whose kubelet it is may write anything: the parser sees only lines of what is wanted, and if
// it fails in a way that would end this process, that is an error like another.
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

// only are the lines of a text that are samples of what is wanted, or say of which type they are.
func only(text io.Reader) (io.Reader, error) {
	names := []string{nodeCPU, nodeMemory, containerCPU, containerMemory, containerStarted}
	kept := &bytes.Buffer{}
	lines := bufio.NewScanner(text) // of 64 KiB at most
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

// container names a container of the cluster.
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

// value is a counter's or a gauge's. What cannot be an amount (negative, infinite, not a number)
// counts as none.
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

// timeOf is when the sample was taken. A time that has not come yet, or before 1970, is none.
func timeOf(m *dto.Metric, received time.Time) time.Time {
	if at := time.UnixMilli(m.GetTimestampMs()); m.GetTimestampMs() > 0 && !at.After(received.Add(future)) {
		return at
	}
	return received
}

// future is by how much another machine's clock may be ahead.
const future = time.Minute
