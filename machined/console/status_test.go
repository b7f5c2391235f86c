package console

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestStatusOf checks which of two problems is shown, what the stage waits for, and that the
// endpoint is shown while the API answers at an address.
func TestStatusOf(t *testing.T) {
	address := []netip.Addr{netip.MustParseAddr("10.0.2.15"), netip.MustParseAddr("fd00::15")}
	apid := []supervise.Status{{Name: nodespec.ServiceContainerd, State: supervise.Starting}, {Name: nodespec.ServiceApid, State: supervise.Running}}
	starting := []supervise.Status{{Name: nodespec.ServiceApid, State: supervise.Starting}}
	for name, test := range map[string]struct {
		facts Facts
		want  Status
	}{
		"healthy": {
			Facts{Name: "m1", Version: "1.0.0", Kubernetes: "v1.37.2", Slot: "A", Stage: "services", Identity: "sha256:ab", PairingCode: "1234", Addresses: address, Services: apid, NetworkProblems: []string{"eth1: no carrier"}},
			Status{
				Name: "m1", Version: "1.0.0", Kubernetes: "v1.37.2", Slot: "A", Stage: "services", Identity: "sha256:ab", PairingCode: "1234",
				Addresses: []string{"10.0.2.15", "fd00::15"}, Endpoint: "10.0.2.15:50000", Services: []string{"containerd starting", "apid running"},
			},
		},
		"no address":             {Facts{WaitingFor: "an address", Services: apid, NetworkProblems: []string{"eth0: no carrier"}}, Status{WaitsFor: []string{"an address", "eth0: no carrier"}, Services: []string{"containerd starting", "apid running"}}},
		"apid does not run":      {Facts{Addresses: address[:1], Services: starting}, Status{Addresses: []string{"10.0.2.15"}, Services: []string{"apid starting"}}},
		"a problem of the disk":  {Facts{StorageProblem: "no disk", ConfigProblem: "unreadable"}, Status{Problem: "no disk"}},
		"an unreadable document": {Facts{ConfigProblem: "unreadable"}, Status{Problem: "unreadable"}},
		"in memory":              {Facts{Medium: "memory", StorageProblem: "not installed"}, Status{Medium: "memory"}},
		"in memory, unreadable":  {Facts{Medium: "memory", StorageProblem: "not installed", ConfigProblem: "unreadable"}, Status{Medium: "memory", Problem: "unreadable"}},
	} {
		if got := StatusOf(test.facts); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
