package machines

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

// large returns a cluster of a thousand machines of which half run their wanted release.
func large(t *testing.T) *world {
	w := newWorld(t)
	for i := range 1000 {
		w.node(fmt.Sprintf("m%04d", i), fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	w.Settings.Own = "m0000"
	w.settle()
	for i, m := range w.Own {
		version := map[bool]string{true: "1.2.0", false: "1.1.0"}[i%2 == 0]
		m.Status.Release = &machineapi.RunningRelease{Version: version, Kubernetes: "v1.37.2"}
		m.Spec.Release = &machineapi.ReleaseReference{Version: "1.2.0"}
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: machineapi.ConditionReady, Status: metav1.ConditionTrue, Reason: "Healthy"})
	}
	w.settle()
	return w
}

// maxAllocated is the largest number of bytes that a pass over 1000 machines may allocate. The test
// only prints the time of a pass, because it depends on the load of the computer. On one core, a
// pass took 33 ms. With a pass every 500 ms, this is 7 % of the core.
const maxAllocated = 16 << 20

// TestCost checks the memory of a pass over 1000 machines in a rollout, and prints its time.
func TestCost(t *testing.T) {
	w := large(t)
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Plan(w.Snapshot); err != nil {
				b.Fatal(err)
			}
		}
	})
	t.Logf("a pass over %d machines: %v, %d KiB", len(w.Machines), time.Duration(r.NsPerOp()), r.AllocedBytesPerOp()>>10)
	if r.AllocedBytesPerOp() > maxAllocated {
		t.Errorf("a pass allocates %d bytes, and %d are permitted", r.AllocedBytesPerOp(), maxAllocated)
	}
}
