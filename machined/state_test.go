package main

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestDiagnosisWithoutCluster checks that the plan of the services and the topic "configuration" of
// a machine without a cluster do not wait for a ledger that cannot be read.
func TestDiagnosisWithoutCluster(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger.json")
	if err := unix.Mkfifo(ledger, 0o600); err != nil { // nothing is ever written to it
		t.Fatal(err)
	}
	m := newMachine()
	m.setMembers(func(d *membership.Deps) { d.Files.Ledger = ledger })
	m.config.facts = newFacts(m)
	m.config.active.Cell().Set(activeconfig.Active{Config: config.New("n1", config.RoleWorker)})
	done := make(chan activeconfig.State)
	go func() {
		m.config.facts.Plan(nil, network.State{})
		m.config.facts.Plan(m.config.active.Current().Config, network.State{})
		done <- m.config.active.State(t.Context())
	}()
	select {
	case s := <-done:
		if !s.Present || s.Machine != "n1" || s.StagedUnknown != "" {
			t.Errorf("the topic is %+v", s)
		}
	case <-time.After(20 * time.Second):
		t.Error("the plan or the topic waits for the ledger")
	}
}
