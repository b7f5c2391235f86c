package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// envCost is the environment variable that enables TestCost. Its value is the duration of the idle
// time.
const envCost = "ORLOP_TEST_COST"

// TestCost measures a control plane without a node at three times: when it is ready, ten seconds
// later, and after the idle time. It prints the processor time, the memory, and the requests to the
// API server since the previous time. At the end it prints the open watches.
func TestCost(t *testing.T) {
	idle, err := time.ParseDuration(cmp.Or(os.Getenv(envCost), "0"))
	if err != nil {
		t.Fatalf("%s: %v", envCost, err)
	}
	if idle == 0 {
		t.Skip("measures, and takes a minute or more: set " + envCost + "=1m")
	}
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	network(t, spec.Node.IPs[0].String()+"/24")
	m := prepare(t, spec)
	zero := time.Now()
	api, controllers := m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
	api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap")
	controllers.waitReady(t, time.Minute, "node-ipam", "namespaces", "kube-controller-manager", "kube-scheduler", "metrics", "addons", "node-taints")
	before := map[string]float64{}
	for _, wait := range []time.Duration{0, 10 * time.Second, idle} {
		time.Sleep(wait)
		t.Logf("%.1f s: api: %s; controllers: %s", time.Since(zero).Seconds(), api.usage(t), controllers.usage(t))
		before = m.logRequests(t, before)
	}
	m.logWatches(t)
	// a process writes its profiles (ORLOP_TEST_PROFILE) when it ends
	for _, p := range []*started{controllers, api} {
		if err := p.stop(t, time.Minute); err != nil {
			t.Errorf("%s: %v", p.log, err)
		}
	}
}

// metrics returns the metrics of the API server.
func (m machine) metrics(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	raw, err := m.client(t, "admin", "orlop:cluster-admins").Discovery().RESTClient().Get().AbsPath("/metrics").Do(context.Background()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// labels returns the labels of a metric.
func labels(metric *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range metric.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// logRequests logs how many requests of each kind the API server has received since the counts in
// before, and returns the present counts.
func (m machine) logRequests(t *testing.T, before map[string]float64) map[string]float64 {
	t.Helper()
	now := map[string]float64{}
	for _, metric := range m.metrics(t)["apiserver_request_total"].GetMetric() {
		l := labels(metric)
		now[fmt.Sprintf("%s %s/%s %s", l["verb"], l["group"], l["resource"], l["subresource"])] += metric.GetCounter().GetValue()
	}
	total := 0.0
	for _, request := range slices.SortedFunc(maps.Keys(now), func(a, b string) int { return cmp.Compare(now[b]-before[b], now[a]-before[a]) }) {
		if count := now[request] - before[request]; count > 0 {
			t.Logf("%6.0f %s", count, request)
			total += count
		}
	}
	t.Logf("%6.0f requests", total)
	return now
}

// logWatches logs the open watches of each resource. The watches of the API server's own informers
// count, too.
func (m machine) logWatches(t *testing.T) {
	t.Helper()
	total := 0.0
	for _, metric := range m.metrics(t)["apiserver_longrunning_requests"].GetMetric() {
		l := labels(metric)
		if open := metric.GetGauge().GetValue(); l["verb"] == "WATCH" && open > 0 {
			t.Logf("%6.0f WATCH %s/%s", open, l["group"], l["resource"])
			total += open
		}
	}
	t.Logf("%6.0f watches", total)
}
