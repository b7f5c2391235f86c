package metrics

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var (
	received = time.UnixMilli(1_900_000_000_000)
	web      = types.NamespacedName{Namespace: "shop", Name: "web-1"}
)

func TestParse(t *testing.T) {
	at := received.Add(-3 * time.Second)
	for _, c := range []struct {
		what, text string
		want       report
	}{
		{"a node and two containers", `
# HELP node_cpu_usage_seconds_total Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 120.5 1899999997000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 7.34003e+08 1899999997000
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="app",namespace="shop",pod="web-1"} 10.25 1899999997000
container_cpu_usage_seconds_total{container="log",namespace="shop",pod="web-1"} 0.5 1899999997000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="app",namespace="shop",pod="web-1"} 4096 1899999997000
container_memory_working_set_bytes{container="log",namespace="shop",pod="web-1"} 8192 1899999997000
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="app",namespace="shop",pod="web-1"} 1.8999999e+09
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="shop",pod="web-1"} 11 1899999997000
`, report{
			node: sample{at: at, cpu: 120.5, memory: 7.34003e+08},
			pods: map[types.NamespacedName]map[string]sample{web: {
				"app": {at: at, cpu: 10.25, memory: 4096, started: time.UnixMilli(1_899_999_900_000)},
				"log": {at: at, cpu: 0.5, memory: 8192},
			}},
		}},
		{"without timestamps", `
node_cpu_usage_seconds_total 1
node_memory_working_set_bytes 2
`, report{node: sample{at: received, cpu: 1, memory: 2}}},
		{"timestamps in the future", `
node_cpu_usage_seconds_total 1 1900000900000
node_memory_working_set_bytes 2 1900000900000
`, report{node: sample{at: received, cpu: 1, memory: 2}}},
		{"a container without memory, one that has ended, and two with invalid values", `
node_cpu_usage_seconds_total 1
container_cpu_usage_seconds_total{container="a",namespace="shop",pod="web-1"} 1
container_cpu_usage_seconds_total{container="b",namespace="shop",pod="web-1"} 0
container_memory_working_set_bytes{container="b",namespace="shop",pod="web-1"} 0
container_cpu_usage_seconds_total{container="c",namespace="shop",pod="web-1"} NaN
container_memory_working_set_bytes{container="c",namespace="shop",pod="web-1"} -1
container_cpu_usage_seconds_total{container="d",namespace="shop",pod="web-1"} 1
container_memory_working_set_bytes{container="d",namespace="shop",pod="web-1"} +Inf
`, report{}},
		{"an empty response", "", report{}},
	} {
		got, err := parse(strings.NewReader(c.text), received)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if c.want.pods == nil {
			c.want.pods = map[types.NamespacedName]map[string]sample{}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	for _, text := range []string{"node_cpu_usage_seconds_total one\n", "node_cpu_usage_seconds_total{b=\"c\" 1\n", "a" + strings.Repeat("b", 1<<16)} {
		if got, err := parse(strings.NewReader(text), received); err == nil || !strings.Contains(err.Error(), "cannot read the metrics") {
			t.Errorf("parse(%q) returns %+v, %v, want an error", text, got, err)
		}
	}
}

// TestParseHostile checks that lines which would make the parser panic or use much memory do not
// reach the parser.
func TestParseHostile(t *testing.T) {
	good := "node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 2\n"
	want, err := parse(strings.NewReader(good), received)
	if err != nil || want.node == (sample{}) {
		t.Fatal(want, err)
	}
	for _, text := range []string{
		"# HELP a b\n{}\n", "# HELP a b\n{x=\"y\"} 1\n", "# HELP node_cpu_usage_seconds_total b\n{}\n", "# TYPE node_cpu_usage_seconds_total counter\n{}\n",
		"# TYPE node_cpu_usage_seconds_total counter\n{x=\"y\"} 1\n", strings.Repeat("a 1\n", 100000), "<html>\n", "#\n# \n\n",
	} {
		if got, err := parse(strings.NewReader(text+good), received); err != nil || got.node != want.node {
			t.Errorf("%.40q before valid lines: %+v, %v", text, got, err)
		}
	}
	if kept, err := only(strings.NewReader(strings.Repeat("a 1\n", 1000) + good)); err != nil || kept.(*bytes.Buffer).String() != good {
		t.Errorf("the filter passes %v, %v to the parser, want only the metrics of the node", kept, err)
	}
}

// FuzzParse checks that parse returns only valid values for any response of a kubelet.
func FuzzParse(f *testing.F) {
	f.Add("node_cpu_usage_seconds_total 1 1\nnode_memory_working_set_bytes 2\n")
	f.Add("container_cpu_usage_seconds_total{container=\"a\"} 1e300\ncontainer_memory_working_set_bytes{container=\"a\"} 1e300\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parse(strings.NewReader(text), received)
		if err != nil {
			return
		}
		for _, containers := range r.pods {
			for name, s := range containers {
				if !(s.cpu > 0) || !(s.memory > 0) || s.at.IsZero() || s.at.After(received.Add(future)) {
					t.Errorf("%q: %+v", name, s)
				}
			}
		}
	})
}
