package events

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/panics"
)

// The handling of a panic in PID 1 (docs/decisions/0059-panics.md): a call that panics fails, and a
// task that panics is restarted. Both are recorded and counted, and a version on trial that panics
// is rolled back. A panic of the main loop is not recovered (machined/main.go): the process ends,
// and the machine resets.

// PanicState is the panics since the start of machined: topic "panics".
type PanicState struct {
	Panics int       `json:"panics"`         // recovered panics
	Last   string    `json:"last,omitempty"` // the last one
	At     time.Time `json:"at,omitzero"`    // its time
	// tasks that wait for their restart after a panic
	BackingOff []string `json:"backingOff,omitempty"`
}

const (
	restartMinBackoff = time.Second
	restartMaxBackoff = 5 * time.Minute
	// maxPanicsRecorded bounds the recorded stacks per boot. More panics are only counted.
	maxPanicsRecorded = 20
)

// Panics counts and records the panics.
type Panics struct {
	state  *cell.Cell[PanicState]
	event  func(kind, message string)
	record func(audit.Call)
}

// NewPanics returns the state before the first panic. event adds an event of the panics, record
// adds a call to the audit log.
func NewPanics(event func(kind, message string), record func(audit.Call)) *Panics {
	return &Panics{state: cell.New(PanicState{}), event: event, record: record}
}

// State holds the panics since the start of machined.
func (l *Panics) State() *cell.Cell[PanicState] { return l.state }

// Restarter runs the tasks that last as long as the machine runs.
func (l *Panics) Restarter() panics.Restarter {
	return panics.Restarter{MinBackoff: restartMinBackoff, MaxBackoff: restartMaxBackoff, BackingOff: func(where string, waiting bool) {
		l.state.Update(func(s PanicState) PanicState {
			s.BackingOff = slices.DeleteFunc(slices.Clone(s.BackingOff), func(w string) bool { return w == where })
			if waiting {
				s.BackingOff = append(s.BackingOff, where)
			}
			return s
		})
	}}
}

// Add records a panic. It takes no lock that the panicking goroutine can hold, except the locks of
// the events and of the audit log. If the code under these locks panics, either the record is
// already complete, or the process ends. So no panic is recovered twice.
func (l *Panics) Add(e *panics.Error) {
	count := 0
	l.state.Update(func(s PanicState) PanicState {
		s.Panics++
		count, s.Last, s.At = s.Panics, e.Error(), time.Now()
		return s
	})
	if count > maxPanicsRecorded {
		return
	}
	l.event("failure", e.Error())
	for i, line := range slices.Collect(strings.Lines(e.Stack)) {
		if i >= stackLines {
			break
		}
		l.event("stack", strings.TrimRight(line, "\n"))
	}
	l.record(audit.Call{Role: "nobody", Method: "panic", Target: e.Where, Status: codes.Internal.String(), Reason: e.Value})
}

// stackLines is the number of stack lines that become events, two for each function. More lines
// would displace other events: the event log holds a day of a quiet machine.
const stackLines = 40

// Check returns the check of the panics; nil if there were none. It fails while a task waits
// for its restart; a call that panicked is only counted, because it leaves no state.
func (s PanicState) Check() *api.HealthCheck {
	if s.Panics == 0 {
		return nil
	}
	ok, detail := len(s.BackingOff) == 0, fmt.Sprintf("panicked %d times since boot, the last time in %s", s.Panics, s.Last)
	if !ok {
		detail = fmt.Sprintf("%s waits for its restart; %s", strings.Join(s.BackingOff, ", "), detail)
	}
	return &api.HealthCheck{Name: "panics", Ok: ok, Detail: detail, Since: timestamppb.New(s.At)}
}

// Reason returns why a version on trial that panicked fails; empty if it has not panicked.
func (s PanicState) Reason(version string) string {
	if s.Panics == 0 {
		return ""
	}
	return fmt.Sprintf("version %s failed its checks: %s", version, s.Last)
}
