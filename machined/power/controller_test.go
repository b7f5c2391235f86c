package power

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/disklayout"
)

// TestSecondRequest checks that only the first request counts: an equal request succeeds, and a
// different request, or a reset, is an error.
func TestSecondRequest(t *testing.T) {
	c := NewController(Deps{})
	if c.Stopping() || c.Check() != nil || c.Running().Err() != nil {
		t.Error("stopping before a request")
	}
	c.request.Store(&Request{To: Reboot, Why: "asked by alice"}) // Shutdown would perform it
	for _, test := range []struct {
		name    string
		request Request
		want    codes.Code
	}{
		{"equal", Request{To: Reboot, Why: "asked by bob"}, codes.OK},
		{"another mode", Request{To: PowerOff}, codes.FailedPrecondition},
		{"a reset", Request{To: Reboot, Wipe: []string{"STATE"}}, codes.FailedPrecondition},
	} {
		if got := status.Code(c.Shutdown(test.request)); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	if !c.Stopping() || status.Convert(c.Check()).Message() != "the machine is already shutting down (reboot: asked by alice); call again after it has booted" {
		t.Errorf("%v", c.Check())
	}
}

// TestPerform checks that a shutdown that is performed directly is the only one, before and after
// other requests.
func TestPerform(t *testing.T) {
	performed, lines := make(chan Request, 4), make(chan string, 4)
	c := NewController(Deps{Console: func(line string) { lines <- line }})
	c.perform = func(r Request) {
		performed <- r
		select {}
	}
	go c.Perform(Request{To: Reboot, Why: "boot: mount failed"})
	if r := <-performed; r.Why != "boot: mount failed" {
		t.Errorf("performed: %v", r)
	}
	if !c.Stopping() || status.Code(c.Check()) != codes.FailedPrecondition {
		t.Error("a shutdown that is performed directly is no request")
	}
	if err := c.Shutdown(Request{To: Reboot, Why: "asked by alice"}); err != nil {
		t.Errorf("an equal request: %v", err)
	}
	if err := c.Shutdown(Request{To: PowerOff}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another mode: %v", err)
	}
	go c.Perform(Request{To: Reboot, Why: "the local API failed"})
	const want = "reboot: the local API failed: not performed: the machine is already shutting down (reboot: boot: mount failed); call again after it has booted"
	if line := <-lines; line != want {
		t.Errorf("%q; want %q", line, want)
	}
	if len(performed) > 0 {
		t.Errorf("a second shutdown was started: %v", <-performed)
	}
}

// TestReset checks the order of the steps of a reset: all is checked before the first change, and a
// reset that is rejected later makes the Node schedulable again.
func TestReset(t *testing.T) {
	for name, c := range map[string]struct {
		labels []string
		fails  string // the step that fails
		memory string // why there is nothing to reset
		steps  string
		says   string
	}{
		"in memory":              {[]string{disklayout.State}, "", "the system runs from memory", "", "reset refused: the system runs from memory"},
		"STATE":                  {[]string{disklayout.State}, "", "", "quorum, drain, quorum, wipe [STATE]", ""},
		"STATE, no quorum":       {[]string{disklayout.State}, "quorum", "", "quorum", "reset refused: quorum: no"},
		"DATA":                   {[]string{disklayout.Data}, "", "", "may leave, drain, leave, wipe [DATA]", ""},
		"DATA, no quorum":        {[]string{disklayout.Data, disklayout.State}, "may leave", "", "may leave", "reset refused: may leave: no"},
		"a pod stays":            {[]string{disklayout.Data}, "drain", "", "may leave, drain", "reset refused: drain: no"},
		"no quorum any more":     {[]string{disklayout.Data}, "leave", "", "may leave, drain, leave, uncordon", "reset refused: leave: no"},
		"a shutdown has started": {[]string{disklayout.Data}, "shutdown", "", "may leave, drain, uncordon", "the machine is already shutting down (power off: button); call again after it has booted"},
	} {
		var steps []string
		var controller *Controller
		step := func(what string) error {
			if steps = append(steps, what); what == c.fails {
				return errors.New(what + ": no")
			}
			return nil
		}
		controller = NewController(Deps{NotInstalled: c.memory, Reset: ResetDeps{
			CheckQuorum: func() error { return step("quorum") }, CheckLeave: func() error { return step("may leave") },
			Drain: func() error {
				if c.fails == "shutdown" {
					controller.request.Store(&Request{To: PowerOff, Why: "button"})
				}
				return step("drain")
			},
			Leave: func(string) error { return step("leave") }, Uncordon: func() { _ = step("uncordon") },
		}})
		performed := make(chan Request, 1)
		controller.perform = func(r Request) { performed <- r }
		err := controller.Reset(c.labels, "alice")
		if err == nil {
			steps = append(steps, fmt.Sprint("wipe ", (<-performed).Wipe))
		}
		if got := strings.Join(steps, ", "); got != c.steps || status.Convert(err).Message() != c.says || err != nil && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %s, %v; want %s, %s", name, got, err, c.steps, c.says)
		}
	}
}
