package machines

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

// TestMetrics checks the metrics of a ready machine and of a machine that has reported nothing.
// While machine objects are disabled, there are no metrics.
func TestMetrics(t *testing.T) {
	machine := func(name, phase string, conditions ...metav1.Condition) *clusterv1.Machine {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Status.Phase, m.Status.Conditions = phase, conditions
		return m
	}
	var c collector
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(&c)
	if got, err := registry.Gather(); err != nil || len(got) != 0 {
		t.Errorf("metrics while machine objects are disabled: %v, %v, want none", got, err)
	}
	read := objects(func() ([]*clusterv1.Machine, []*machineapi.OrlopMachine) {
		own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "m1"}, Spec: machineapi.OrlopMachineSpec{Role: machineapi.RoleControlPlane}}
		own.Status.Release = &machineapi.RunningRelease{Version: "1.2.0", Kubernetes: "v1.37.2"}
		silent := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Role: machineapi.RoleWorker}}
		return []*clusterv1.Machine{
			machine("m1", "Running", metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue}, metav1.Condition{Type: "UpToDate", Status: metav1.ConditionTrue, Reason: "UpToDate"}),
			machine("w1", "", metav1.Condition{Type: "Ready", Status: metav1.ConditionUnknown}),
		}, []*machineapi.OrlopMachine{own, silent}
	})
	c.objects.Store(&read)
	const want = `
# HELP orlop_machine_condition [ALPHA] The present status of a condition of a Machine; always 1.
# TYPE orlop_machine_condition gauge
orlop_machine_condition{condition="Ready",machine="m1",status="True"} 1
orlop_machine_condition{condition="Ready",machine="w1",status="Unknown"} 1
orlop_machine_condition{condition="UpToDate",machine="m1",status="True"} 1
# HELP orlop_machine_info [ALPHA] A machine with its role and the release that it runs; always 1.
# TYPE orlop_machine_info gauge
orlop_machine_info{kubernetes="",machine="w1",release="",role="worker"} 1
orlop_machine_info{kubernetes="v1.37.2",machine="m1",release="1.2.0",role="controlplane"} 1
# HELP orlop_machine_phase [ALPHA] The phase of a Machine; always 1.
# TYPE orlop_machine_phase gauge
orlop_machine_phase{machine="m1",phase="Running"} 1
# HELP orlop_machine_ready [ALPHA] 1 if condition Ready of a Machine is true, 0 otherwise.
# TYPE orlop_machine_ready gauge
orlop_machine_ready{machine="m1"} 1
orlop_machine_ready{machine="w1"} 0
# HELP orlop_rollout_machines [ALPHA] The number of machines in a state of the rollout, the reason of condition UpToDate.
# TYPE orlop_rollout_machines gauge
orlop_rollout_machines{state="UpToDate"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
