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

// TestReset checks the order of a reset: the cluster permits it, the pods are evicted, the member
// leaves etcd. A reset that is refused at any step returns the turn, makes the Node schedulable
// again, and changes nothing else.
func TestReset(t *testing.T) {
	state, data := []string{disklayout.State}, []string{disklayout.Data, disklayout.State}
	const stopping = "the machine is already shutting down (power off: button); call again after it has booted"
	for name, test := range map[string]struct {
		labels []string
		force  bool
		memory string // the reason for which the system has nothing to reset
		fails  string // the step
		want   string // the steps, and the error
	}{
		"state":                       {state, false, "", "", "permit, drain, confirm, wipe [STATE]; "},
		"data":                        {data, false, "", "", "permit data, drain, confirm, leave, prepare, wipe [DATA STATE]; "},
		"in memory":                   {state, true, "the system runs from memory", "", "; reset refused: the system runs from memory"},
		"the cluster needs it":        {state, false, "", "permit", "permit; reset refused: permit"},
		"pods stay":                   {state, false, "", "drain", "permit, drain, give back; reset refused: drain"},
		"its member cannot leave":     {data, false, "", "leave", "permit data, drain, confirm, leave, uncordon, give back; reset refused: leave"},
		"the cluster needs it again":  {data, false, "", "confirm", "permit data, drain, confirm, uncordon, give back; reset refused: confirm"},
		"a shutdown has started":      {data, false, "", "stop", "permit data, drain, uncordon, give back; " + stopping},
		"forced":                      {state, true, "", "", "permit forced, drain, confirm, wipe [STATE]; "},
		"forced, and it cannot leave": {data, true, "", "leave", "permit data forced, drain, confirm, leave, reset forced by dora, although: leave, prepare, wipe [DATA STATE]; "},
		"it cannot be prepared":       {data, false, "", "prepare", "permit data, drain, confirm, leave, prepare, uncordon, give back; reset refused: prepare"},
		"forced, and the pods stay":   {data, true, "", "drain", "permit data forced, drain, give back; reset refused: drain"},
	} {
		var steps []string
		do := func(step, text string) error {
			steps = append(steps, text)
			if step == test.fails {
				return errors.New(map[bool]string{true: "reset refused: "}[step == "permit" || step == "confirm"] + step)
			}
			return nil
		}
		var c *Controller
		c = NewController(Deps{NotInstalled: test.memory, Console: func(line string) { steps = append(steps, line) }, Reset: ResetDeps{
			Permit: func(data, force bool, _ string) (func(), error) {
				text := "permit" + map[bool]string{true: " data"}[data] + map[bool]string{true: " forced"}[force]
				return func() { steps = append(steps, "give back") }, do("permit", text)
			},
			Drain: func() error {
				if test.fails == "stop" {
					c.request.Store(&Request{To: PowerOff, Why: "button"})
				}
				return do("drain", "drain")
			},
			Confirm:  func(bool, bool, string) error { return do("confirm", "confirm") },
			Leave:    func(string) error { return do("leave", "leave") },
			Prepare:  func() error { return do("prepare", "prepare") },
			Uncordon: func() { steps = append(steps, "uncordon") },
		}})
		performed := make(chan Request, 1)
		c.perform = func(r Request) { performed <- r }
		err := c.Reset(test.labels, test.force, "dora")
		if err == nil {
			steps = append(steps, fmt.Sprint("wipe ", (<-performed).Wipe))
		}
		got := strings.Join(steps, ", ") + "; " + status.Convert(err).Message()
		if got != test.want || err != nil && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %s, %v", name, got, status.Code(err))
		}
	}
}
