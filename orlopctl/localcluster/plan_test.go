package localcluster

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

// TestPlan checks the machines and the forwarded ports of a cluster of two control-plane machines
// and a worker, and the access to its Redfish service.
func TestPlan(t *testing.T) {
	o := options{image: "disk.raw", memory: 2048, workerMemory: 1024, cpus: 2, diskGiB: 8, controlPlanes: 2, workers: 1}
	if got := strings.Join(o.machineNames(), " "); got != "cp1 cp2 w1" {
		t.Errorf("names of the machines: %s", got)
	}
	var memory []int
	for _, m := range o.machineSpecs() {
		memory = append(memory, m.MemoryMiB)
	}
	if len(memory) != 3 || memory[0] != 2048 || memory[1] != 2048 || memory[2] != 1024 {
		t.Errorf("memory of the machines: %v", memory)
	}
	var forwards []string
	for _, f := range o.forwards(16443, 0) {
		name := f.Machine + ":api"
		if f.Port == paths.PortKubernetes {
			name = f.Machine + ":kubernetes"
		}
		if f.HostPort != 0 {
			name += "=16443"
		}
		forwards = append(forwards, name)
	}
	if o.redfishSpec() != nil {
		t.Error("the cluster has a Redfish service without the flag")
	}
	if o.redfish = true; o.redfishSpec() == nil {
		t.Error("the cluster has no Redfish service with the flag")
	}
	access := redfishAccess(&vm.RedfishStatus{URL: "https://127.0.0.1:8443", User: "admin", PasswordFile: "/c/redfish.password", Fingerprint: "sha256:12"})
	if access != "https://127.0.0.1:8443, user admin, password in /c/redfish.password, key sha256:12" {
		t.Error(access)
	}
	if got := strings.Join(forwards, " "); got != "cp1:kubernetes=16443 cp1:api cp2:api cp2:kubernetes w1:api" {
		t.Errorf("forwarded ports: %s", got)
	}
}
