package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"k8s.io/kubelet/config/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
)

// The kubelet stores its assignments of processors and memory in two files below its directory
// (pkg/kubelet/cm/cpumanager and memorymanager), and does not start if the files are from another
// policy or from other reserved processors. Upstream's remedy is to delete the files. This package
// deletes them when the settings change, and so records the settings with which they were written.
const (
	cpuAssignments    = "cpu_manager_state"
	memoryAssignments = "memory_manager_state"
	assignmentsRecord = "resource-managers.json"
)

// assignmentSettings are the settings on which the stored assignments depend.
type assignmentSettings struct {
	CPUPolicy      string                            `json:"cpuPolicy"`
	CPUOptions     map[string]string                 `json:"cpuOptions,omitempty"`
	ReservedCPUs   string                            `json:"reservedCPUs,omitempty"`
	ReservedCPU    string                            `json:"reservedCPU,omitempty"`
	MemoryPolicy   string                            `json:"memoryPolicy"`
	ReservedMemory []kubeletconfig.MemoryReservation `json:"reservedMemory,omitempty"`
}

// assignmentsOf returns the record of a configuration; empty if the kubelet assigns nothing.
func assignmentsOf(c kubeletconfig.KubeletConfiguration) (string, error) {
	if c.CPUManagerPolicy == string(cpumanager.PolicyNone) && c.MemoryManagerPolicy == v1beta1.NoneMemoryManagerPolicy {
		return "", nil
	}
	text, err := json.Marshal(assignmentSettings{
		c.CPUManagerPolicy, c.CPUManagerPolicyOptions, c.ReservedSystemCPUs, c.SystemReserved["cpu"], c.MemoryManagerPolicy, c.ReservedMemory,
	})
	return string(text), err
}

// resetAssignments deletes the assignments below root if they are of other settings than want, an
// output of assignmentsOf. Versions of the system without these settings have no record and assign
// nothing. A repeated call after a power cut completes the work.
func resetAssignments(root, want string) error {
	record := filepath.Join(root, assignmentsRecord)
	have, err := os.ReadFile(record)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("assignments of processors and memory: cannot read their settings: %w", err)
	}
	if string(have) == want {
		return nil
	}
	for _, name := range []string{cpuAssignments, memoryAssignments} {
		if err := os.Remove(filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("assignments of processors and memory: cannot delete: %w", err)
		}
	}
	if want == "" {
		err = os.Remove(record)
	} else {
		err = renameio.WriteFile(record, []byte(want), 0o600)
	}
	if err != nil {
		return fmt.Errorf("assignments of processors and memory: cannot record their settings: %w", err)
	}
	return nil
}
