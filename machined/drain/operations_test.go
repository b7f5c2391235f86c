package drain

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestOperations drains another machine before its removal, and then this machine. It checks that
// each undo undoes the drain of its own node only.
func TestOperations(t *testing.T) {
	m := newMachine(config.DrainRespect)
	if !(Configured{m.Drainer}).Wanted() || Own(nil) != nil {
		t.Error("Wanted is false although a drain is configured, or Own returns a drain of an empty list")
	}
	undo, err := m.DrainMember(t.Context(), "w1", "dora", config.Drain{Policy: config.DrainForce})
	if err != nil {
		t.Fatal(err)
	}
	states, _ := m.States().Get()
	if Own(states) != nil {
		t.Error("Own returns the drain of another machine")
	}
	if err := (Configured{m.Drainer}).Drain(t.Context(), disruption.Upgrade, "dora"); err != nil {
		t.Fatal(err)
	}
	want := "w1 drained removal by dora with force: 0 evicted; \na drained upgrade by dora with respect: 0 evicted; "
	if got := m.now(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	undo()
	if got := m.now(); !strings.HasPrefix(got, "w1 undone") || strings.Contains(got, "a undone") {
		t.Errorf("after the undo of the removal: %s", got)
	}
	if done, err := m.DrainOwn(t.Context(), disruption.Reboot, "dora", config.Drain{Policy: config.DrainNone}); done || err != nil {
		t.Errorf("a reboot without a drain: %t, %v", done, err)
	}
	(Configured{m.Drainer}).Undo(disruption.Upgrade, "dora")
	if got := m.now(); !strings.Contains(got, "a undone upgrade") {
		t.Errorf("after the undo of the upgrade: %s", got)
	}
}

// TestOwn checks that Own returns the drain of this machine, in the form that its machine object
// contains.
func TestOwn(t *testing.T) {
	got := Own([]State{
		{Node: "w1", Operation: removal},
		{Node: "a", Operation: "reboot", Policy: "respect", Phase: nodespec.PhaseRunning, DrainProgress: blocked},
	})
	if got.Operation != "reboot" || got.Policy != "respect" || got.Phase != "running" || got.Evicted != 2 || got.Left != 1 || len(got.Blocking) != 1 || got.Blocking[0].Pod != "n/web" || got.Blocking[0].Budget != "web" {
		t.Errorf("%+v", got)
	}
}
