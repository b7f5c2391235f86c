package rollout

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// large returns a rollout that is half done: 3 control-plane machines, 997 workers, 20 of them in
// progress, with windows, gates and a canary group.
func large() World {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	w := World{Now: now, Policy: Policy{MaxUnavailable: 40, MinReady: time.Minute, CanarySoak: time.Hour}}
	w.Policy.Windows = []Window{{Start: 10 * time.Hour, Length: 4 * time.Hour}}
	w.Policy.Gates = []Gate{{Name: "smoke", Step: "2-511", State: GatePassed}}
	for i := range 1000 {
		m := Machine{Name: fmt.Sprintf("machine-%03d", i), ControlPlane: i < 3, Leader: i == 0, Canary: i%100 == 3, Have: "1", Want: "2", Ready: true, Since: now.Add(-24 * time.Hour)}
		switch {
		case i < 3 || m.Canary || i%2 == 0:
			m.Have = "2"
		case i < 45:
			m.Updating = true
		}
		w.Machines = append(w.Machines, m)
	}
	return w
}

// TestCost checks the cost of a pass over 1000 machines. The controllers make at most a pass per
// second, and use less than 10 % of a core and 60 MiB for a rollout of 1000 machines. So a pass may
// take 100 ms. It may allocate 1 MiB, and retains no memory after its decision.
func TestCost(t *testing.T) {
	w := large()
	if d := Decide(w); len(permitted(d)) != 20 {
		t.Fatalf("%d machines have a permit, want 20; step %s", len(permitted(d)), d.Step)
	}
	const passes = 50
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := processorTime(t)
	for range passes {
		Decide(w)
	}
	took := (processorTime(t) - began) / passes
	runtime.ReadMemStats(&after)
	allocated := (after.TotalAlloc - before.TotalAlloc) / passes
	t.Logf("a pass over %d machines: %v, %d KiB", len(w.Machines), took, allocated>>10)
	if took > 100*time.Millisecond {
		t.Errorf("a pass takes %v", took)
	}
	if allocated > 1<<20 {
		t.Errorf("a pass allocates %d bytes", allocated)
	}
}

// processorTime returns the processor time of this process. Other processes do not affect it.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDecide(b *testing.B) {
	w := large()
	b.ReportAllocs()
	for b.Loop() {
		Decide(w)
	}
}
