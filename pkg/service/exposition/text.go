// Package exposition passes metrics from the processes of a machine to metricsd. Families of
// metrics go over HTTP on a Unix socket, in the text format of Prometheus (version 0.0.4).
//
// The package does not decide which metrics exist, or which clients may read them.
package exposition

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// ContentType is the content type of the text format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Families are metric families. The zero value is empty and ready to use.
type Families struct{ byName map[string]*dto.MetricFamily }

// Gauge adds a metric with a value that can rise and fall. labels are alternating names and values.
// All metrics with the same name must have the same label names.
func (f *Families) Gauge(name, help string, value float64, labels ...string) {
	f.add(name, help, dto.MetricType_GAUGE, &dto.Metric{Label: pairs(labels), Gauge: &dto.Gauge{Value: &value}})
}

// Counter adds a metric with a value that only rises, until its source restarts. labels are as for
// Gauge.
func (f *Families) Counter(name, help string, value float64, labels ...string) {
	f.add(name, help, dto.MetricType_COUNTER, &dto.Metric{Label: pairs(labels), Counter: &dto.Counter{Value: &value}})
}

// Untyped adds a metric of the kernel. Its value can be a counter or a gauge. labels are as for
// Gauge.
func (f *Families) Untyped(name, help string, value float64, labels ...string) {
	f.add(name, help, dto.MetricType_UNTYPED, &dto.Metric{Label: pairs(labels), Untyped: &dto.Untyped{Value: &value}})
}

// Number returns 1 for true, and 0 for false.
func Number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (f *Families) add(name, help string, kind dto.MetricType, m *dto.Metric) {
	if f.byName == nil {
		f.byName = map[string]*dto.MetricFamily{}
	}
	family := f.byName[name]
	if family == nil {
		family = &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
		f.byName[name] = family
	}
	family.Metric = append(family.Metric, m)
}

// pairs returns labels. It replaces invalid UTF-8, because the whole scrape would fail otherwise.
func pairs(labels []string) (out []*dto.LabelPair) {
	for pair := range slices.Chunk(labels, 2) {
		name, value := pair[0], strings.ToValidUTF8(pair[1], "�")
		out = append(out, &dto.LabelPair{Name: &name, Value: &value})
	}
	return out
}

// Names returns the sorted names of the families.
func (f *Families) Names() []string { return slices.Sorted(maps.Keys(f.byName)) }

// Write writes all families, sorted by name, in the text format.
func (f *Families) Write(w io.Writer) error {
	for _, name := range f.Names() {
		if _, err := expfmt.MetricFamilyToText(w, f.byName[name]); err != nil {
			return fmt.Errorf("metric %s: cannot write: %w", name, err)
		}
	}
	return nil
}
