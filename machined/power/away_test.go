package power

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// TestGo checks the order of the steps of a reboot, a shutdown and a reset. If any step refuses the
// operation, Go gives the turn back and makes the Node schedulable again, and the machine does not
// shut down.
func TestGo(t *testing.T) {
	reboot, off := Away{To: Reboot}, Away{To: PowerOff}
	state, data := Away{To: Reboot, Wipe: []string{layout.State}}, Away{To: Reboot, Wipe: []string{layout.Data, layout.State}}
	forced := func(a Away) Away { a.Force = true; return a }
	none := func(a Away) Away { a.Drain.Policy = config.DrainNone; return a }
	const stopping = "the machine is already shutting down (power off: button); call again after it has booted"
	for name, test := range map[string]struct {
		away   Away
		memory string // why the system has nothing to reset (Deps.NotInstalled)
		fails  string // the step that fails
		want   string // the steps, and then the error
	}{
		"a reboot":                                {reboot, "", "", "permit reboot, drain, confirm, reboot []; "},
		"a reboot without a drain":                {none(reboot), "", "", "permit reboot, reboot []; "},
		"a reboot in memory":                      {none(reboot), "the system runs from memory", "", "permit reboot, reboot []; "},
		"a reboot, the drain fails":               {reboot, "", "drain", "permit reboot, drain, give back; reboot refused: drain"},
		"a reboot, refused":                       {reboot, "", "permit", "permit reboot; refused: permit"},
		"a reboot, refused later":                 {reboot, "", "confirm", "permit reboot, drain, confirm, undo, give back; refused: confirm"},
		"a shutdown":                              {forced(off), "", "", "permit shutdown forced, drain, confirm, power off []; "},
		"a shutdown during a shutdown":            {none(off), "", "stop", "permit shutdown, power off []; "},
		"a reboot during a shutdown":              {none(reboot), "", "stop", "permit reboot, undo, give back; " + stopping},
		"a reset of STATE":                        {state, "", "", "permit reset, drain, confirm, reboot [STATE]; "},
		"a reset of DATA":                         {data, "", "", "permit reset-data, drain, confirm, leave, prepare, reboot [DATA STATE]; "},
		"a reset of DATA, prepare fails":          {data, "", "prepare", "permit reset-data, drain, confirm, leave, prepare, undo, give back; reset refused: prepare"},
		"a reset of DATA without a drain":         {none(data), "", "", "permit reset-data, confirm, leave, prepare, reboot [DATA STATE]; "},
		"a reset in memory":                       {forced(state), "the system runs from memory", "", "; reset refused: the system runs from memory"},
		"a reset, refused":                        {state, "", "permit", "permit reset; refused: permit"},
		"a reset, the drain fails":                {state, "", "drain", "permit reset, drain, give back; reset refused: drain"},
		"a reset of DATA, leave fails":            {data, "", "leave", "permit reset-data, drain, confirm, leave, undo, give back; reset refused: leave"},
		"a reset of DATA, refused later":          {data, "", "confirm", "permit reset-data, drain, confirm, undo, give back; refused: confirm"},
		"a reset of DATA during a shutdown":       {data, "", "stop", "permit reset-data, drain, undo, give back; " + stopping},
		"a forced reset of STATE":                 {forced(state), "", "", "permit reset forced, drain, confirm, reboot [STATE]; "},
		"a forced reset of DATA, leave fails":     {forced(data), "", "leave", "permit reset-data forced, drain, confirm, leave, reset forced by dora, although: leave, prepare, reboot [DATA STATE]; "},
		"a forced reset of DATA, the drain fails": {forced(data), "", "drain", "permit reset-data forced, drain, give back; reset refused: drain"},
	} {
		var steps []string
		do := func(step, text string) error {
			steps = append(steps, text)
			if step == test.fails {
				return errors.New(map[bool]string{true: "refused: "}[step == "permit" || step == "confirm"] + step)
			}
			return nil
		}
		var c *Controller
		performed := make(chan Request, 2)
		c = NewController(Deps{NotInstalled: test.memory, Console: func(line string) { steps = append(steps, line) }, Away: AwayDeps{
			Permit: func(ctx context.Context, r disruption.Request) (func(), error) {
				text := "permit " + string(r.Operation) + map[bool]string{true: " forced"}[r.Force]
				if continues := ctx == c.Running(); continues != (len(test.away.Wipe) > 0 || test.away.Drain.Policy != config.DrainNone) {
					t.Errorf("%s: Permit continues after the caller has disconnected: %t", name, continues)
				}
				return func() { steps = append(steps, "give back") }, do("permit", text)
			},
			Wanted: func(policy config.Drain) bool { return policy.Policy != config.DrainNone },
			Drain: func(ctx context.Context, _ disruption.Operation, _ string, policy config.Drain) (bool, error) {
				if ctx != c.Running() {
					t.Errorf("%s: the drain ends when the caller disconnects", name)
				}
				if test.fails == "stop" {
					c.request.Store(&Request{To: PowerOff, Why: "button"})
					performed <- Request{To: PowerOff}
				}
				if policy.Policy == config.DrainNone {
					return false, nil
				}
				return true, do("drain", "drain")
			},
			Confirm: func(context.Context, disruption.Request) error { return do("confirm", "confirm") },
			Leave:   func(string) error { return do("leave", "leave") },
			Prepare: func() error { return do("prepare", "prepare") },
			Undo:    func(disruption.Operation, string) { steps = append(steps, "undo") },
		}})
		c.perform = func(r Request) { performed <- r }
		test.away.By = "dora"
		err := c.Go(t.Context(), test.away)
		if err == nil {
			r := <-performed
			steps = append(steps, fmt.Sprint(r.To, " ", r.Wipe))
		}
		got := strings.Join(steps, ", ") + "; " + status.Convert(err).Message()
		if got != test.want || err != nil && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %s, %v", name, got, status.Code(err))
		}
	}
}
