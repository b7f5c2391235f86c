package main

import (
	"testing"

	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// TestNotInCluster checks that a machine without a configuration is in no cluster, and may shut
// down without the turn.
func TestNotInCluster(t *testing.T) {
	m := newMachine()
	if in := machineInCluster(m); in != (guard.Machine{}) {
		t.Errorf("machineInCluster returns %+v, want no cluster", in)
	}
	if _, err := m.guard.Permit(t.Context(), disruption.Request{Operation: disruption.Shutdown}); err != nil {
		t.Error(err)
	}
}
