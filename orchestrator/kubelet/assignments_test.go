package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestAssignments checks that resetAssignments deletes the stored assignments of processors and
// memory if the settings differ from the previous ones, and retains them if the settings are equal.
func TestAssignments(t *testing.T) {
	root := t.TempDir()
	settings := func(change func(*config.Kubelet)) string {
		s := spec()
		change(&s.Kubernetes.Kubelet)
		text, err := assignmentsOf(parsed(t, s).KubeletConfiguration)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	none := settings(func(*config.Kubelet) {})
	static := settings(func(k *config.Kubelet) { k.CPUManager.Policy = config.CPUManagerStatic })
	option := settings(func(k *config.Kubelet) {
		k.CPUManager = config.CPUManager{Policy: config.CPUManagerStatic, Options: []config.CPUManagerOption{config.CPUFullCores}}
	})
	memory := settings(func(k *config.Kubelet) { k.MemoryManager.Policy = config.MemoryManagerStatic })
	for _, step := range []struct {
		name, want string
		retained   bool
	}{
		{"a start after a version without the settings", none, true},
		{"the static policy", static, false},
		{"the same after a restart", static, true},
		{"an option", option, false},
		{"memory", memory, false},
		{"none", none, false},
		{"none again", none, true},
	} {
		for _, name := range []string{cpuAssignments, memoryAssignments} {
			if err := os.WriteFile(filepath.Join(root, name), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := resetAssignments(root, step.want); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		for _, name := range []string{cpuAssignments, memoryAssignments} {
			if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != step.retained {
				t.Errorf("%s: %s: %v, retained must be %t", step.name, name, err, step.retained)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(root, assignmentsRecord), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := resetAssignments(root, static); err == nil {
		t.Error("resetAssignments accepts a record that it cannot read")
	}
}

// TestStaticPolicies checks that upstream accepts the settings of the static policies.
func TestStaticPolicies(t *testing.T) {
	s := spec()
	s.Node.ReservedCPUs = "0-1,8"
	k := &s.Kubernetes.Kubelet
	k.CPUManager = config.CPUManager{Policy: config.CPUManagerStatic, Options: []config.CPUManagerOption{config.CPUStrictReservation}}
	k.MemoryManager.Policy = config.MemoryManagerStatic
	k.TopologyManager = config.TopologyManager{Policy: config.TopologyRestricted, Scope: config.TopologyPod, MaximumNUMANodes: 9}
	if err := Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	server := parsed(t, s)
	reserved := server.ReservedMemory[0].Limits["memory"]
	if want := s.Node.ReservedMemory + 100<<20; reserved.Value() != want {
		t.Errorf("%d bytes of NUMA node 0 are reserved, want %d: the sum of the reservations and the threshold", reserved.Value(), want)
	}
	if server.ReservedSystemCPUs != "0-1,8" {
		t.Errorf("reserved processors: %q", server.ReservedSystemCPUs)
	}
}

// TestReference checks that upstream accepts the settings of the reference configuration, which has
// an example of each.
func TestReference(t *testing.T) {
	reference, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s := spec()
	s.Kubernetes.Kubelet = reference.Cluster.Spec.Kubernetes.Kubelet
	if err := Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	server := parsed(t, s)
	if soft := server.EvictionSoft; soft["memory.available"] != "419430400" || server.EvictionSoftGracePeriod["memory.available"] != "3m" || len(soft) != 5 {
		t.Errorf("soft thresholds %v for %v", soft, server.EvictionSoftGracePeriod)
	}
	if server.ShutdownGracePeriod.Duration != time.Minute || server.ImageMaximumGCAge.Duration != 720*time.Hour || server.PodPidsLimit != 16384 {
		t.Errorf("the kubelet does not have the settings of the reference: %+v", server.KubeletConfiguration)
	}
	s.Kubernetes.Kubelet.AllowedUnsafeSysctls = []string{"vm.swappiness"}
	if err := Check(t.Context(), s); err == nil {
		t.Error("Check accepts an unsafe sysctl that applies to the whole machine")
	}
	s.Kubernetes.Kubelet = reference.Cluster.Spec.Kubernetes.Kubelet
	s.Kubernetes.Kubelet.Eviction.Hard.NodefsAvailable = config.Threshold{}
	if err := Check(t.Context(), s); err == nil || !strings.Contains(err.Error(), "must be positive") {
		t.Errorf("a threshold of 0: %v", err)
	}
}
