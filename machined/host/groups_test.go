package host

import "testing"

// TestSystemShare checks that pods that want all CPU leave four fifths to the system, on every
// machine with up to 64 processors and for any reservation. kubelet is the weight of all pods
// (getCPUWeight in pkg/kubelet/cm/cgroup_manager_linux.go).
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
		t.Errorf("a large machine: %d is no weight", got)
	}
}
