package host

import "testing"

// TestSystemShare checks that the system gets four fifths of the processor time if the system and
// the pods both need all of it. This is true on every machine with up to 64 processors and for
// several reservations. The function kubelet computes the weight that the kubelet gives to all pods
// together (getCPUWeight in pkg/kubelet/cm/cgroup_manager_linux.go).
func TestSystemShare(t *testing.T) {
	kubelet := func(allocatable int) int { return 1 + (max(allocatable*1024/1000, 2)-2)*9999/262142 }
	for cpus := 1; cpus <= 64; cpus++ {
		for _, reserved := range []int{0, 250, 1000 * cpus / 2} {
			system, pods := systemWeight(cpus), kubelet(1000*cpus-reserved)
			if share := float64(system) / float64(system+pods); share < 0.79 || system > 10000 {
				t.Errorf("%d processors, %dm reserved: weights %d and %d, the system gets %.2f", cpus, reserved, system, pods, share)
			}
		}
	}
	if got := systemWeight(1024); got != 10000 {
		t.Errorf("a machine with 1024 processors: the weight is %d, want the maximum 10000", got)
	}
}
