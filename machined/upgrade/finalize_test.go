package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
)

// TestFinalize checks that Finalize raises the level, also for a caller that disconnects. A machine
// that is no control-plane machine or has an undecided upgrade refuses the call and runs no
// command.
func TestFinalize(t *testing.T) {
	old, next := emulation.Minor{Major: 1, Minor: 36}, emulation.Minor{Major: 1, Minor: 37}
	raised, broken := nodespec.LevelRaised{From: old, To: next}, error(nil)
	var commands, events []string
	machine := &config.Config{Cluster: &config.Cluster{}, Machine: config.Machine{Spec: config.MachineSpec{Role: config.RoleControlPlane}}}
	c := New(Deps{
		Event: func(kind, message string) { events = append(events, kind+": "+message) },
		Node: Node{
			Config: func() *config.Config { return machine },
			Command: func(ctx context.Context, uid uint32, command string, request any, _ ...*os.File) ([]byte, error) {
				if uid != paths.UserAPI || request != (nodespec.RaiseLevel{By: "dora"}) || ctx.Err() != nil {
					t.Errorf("%s as %d with %+v: %v", command, uid, request, ctx.Err())
				}
				commands = append(commands, command)
				text, _ := json.Marshal(raised)
				return text, broken
			},
		},
	}).Controller
	ctx, disconnect := context.WithCancel(t.Context())
	disconnect()
	for range 2 { // only the first call raises the level and adds an event
		from, to, err := c.Finalize(ctx, "dora")
		if err != nil || from != raised.From.String() || to != "1.37" {
			t.Errorf("Finalize raises the level from %s to %s, %v", from, to, err)
		}
		raised.From = next
	}
	if want := []string{"level: the level of the cluster is raised from 1.36 to 1.37, asked by dora"}; !slices.Equal(events, want) {
		t.Errorf("the events are %q", events)
	}
	refused := func(code codes.Code, part string) {
		t.Helper()
		if _, _, err := c.Finalize(t.Context(), "dora"); status.Code(err) != code || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v; want %q", err, part)
		}
	}
	broken = errors.New("finalize refused: control-plane machine b is away")
	refused(codes.FailedPrecondition, "control-plane machine b is away")
	if want := []string{"raise-level", "raise-level", "raise-level"}; !slices.Equal(commands, want) {
		t.Errorf("the commands are %q", commands)
	}
	commands = nil
	c.progress.setRecord(slot.Record{Phase: slot.Trial, From: "0.1.0", To: "0.2.0"})
	refused(codes.FailedPrecondition, "finalize refused: the upgrade from 0.1.0 to 0.2.0 is trial")
	unlock, _ := c.TryLock()
	refused(codes.Aborted, "a bundle is being received or written")
	unlock()
	machine = nil
	refused(codes.FailedPrecondition, "this machine is no control-plane machine")
	if len(commands) > 0 {
		t.Errorf("a refused call has run the commands %q", commands)
	}
}
