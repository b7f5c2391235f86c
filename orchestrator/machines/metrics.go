package machines

import (
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// collector provides the metrics of the machines for the endpoint /metrics of process
// "controllers". It computes them from the caches at each scrape and stores no values.
type collector struct {
	metrics.BaseStableCollector
	objects atomic.Pointer[objects] // nil while machine objects are disabled
}

// objects returns all Machines of the cluster and all OrlopMachines.
type objects func() ([]*clusterv1.Machine, []*machineapi.OrlopMachine)

var (
	infoDesc = metrics.NewDesc("orlop_machine_info", "A machine with its role and the release that it runs; always 1.",
		[]string{"machine", "role", "release", "kubernetes"}, nil, metrics.ALPHA, "")
	phaseDesc = metrics.NewDesc("orlop_machine_phase", "The phase of a Machine; always 1.",
		[]string{"machine", "phase"}, nil, metrics.ALPHA, "")
	readyDesc = metrics.NewDesc("orlop_machine_ready", "1 if condition Ready of a Machine is true, 0 otherwise.",
		[]string{"machine"}, nil, metrics.ALPHA, "")
	conditionDesc = metrics.NewDesc("orlop_machine_condition", "The present status of a condition of a Machine; always 1.",
		[]string{"machine", "condition", "status"}, nil, metrics.ALPHA, "")
	rolloutDesc = metrics.NewDesc("orlop_rollout_machines", "The number of machines in a state of the rollout, the reason of condition UpToDate.",
		[]string{"state"}, nil, metrics.ALPHA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(out chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{infoDesc, phaseDesc, readyDesc, conditionDesc, rolloutDesc} {
		out <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(out chan<- metrics.Metric) {
	read := c.objects.Load()
	if read == nil {
		return
	}
	gauge := func(d *metrics.Desc, value float64, labels ...string) {
		out <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, value, labels...)
	}
	all, own := (*read)()
	states := map[string]int{}
	for _, m := range all {
		if m.Status.Phase != "" {
			gauge(phaseDesc, 1, m.Name, m.Status.Phase)
		}
		ready := 0.0
		for _, condition := range m.Status.Conditions {
			gauge(conditionDesc, 1, m.Name, condition.Type, string(condition.Status))
			switch condition.Type {
			case clusterv1.MachineReadyCondition:
				if condition.Status == metav1.ConditionTrue {
					ready = 1
				}
			case clusterv1.MachineUpToDateCondition:
				states[condition.Reason]++
			}
		}
		gauge(readyDesc, ready, m.Name)
	}
	for _, m := range own {
		release := machineapi.RunningRelease{}
		if m.Status.Release != nil {
			release = *m.Status.Release
		}
		gauge(infoDesc, 1, m.Name, m.Spec.Role, release.Version, release.Kubernetes)
	}
	for state, n := range states {
		gauge(rolloutDesc, float64(n), state)
	}
}

// serve makes the collector use the caches of a controller until stop is called.
func (c *collector) serve(of *controller) (stop func()) {
	read := objects(func() ([]*clusterv1.Machine, []*machineapi.OrlopMachine) {
		return of.ofCluster(component.Objects[*clusterv1.Machine](of.machines)), component.Objects[*machineapi.OrlopMachine](of.own)
	})
	c.objects.Store(&read)
	return func() { c.objects.Store(nil) }
}
