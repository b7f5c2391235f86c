package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/panics"
)

// What becomes of a panic in PID 1 (docs/decisions/0059-panics.md): a call that panics fails, and a
// task that panics is run again. Both are recorded and counted, and a version on trial in which
// that happens is left. What keeps the machine itself going is not recovered (main.go): the process
// ends, and the machine resets.

// programState is what of the program has failed since it started: topic "program".
type programState struct {
	Panics int       `json:"panics"`         // that were recovered
	Last   string    `json:"last,omitempty"` // the last one
	At     time.Time `json:"at,omitzero"`    // when it was
	// tasks that do not run at present because they panicked, and are run again
	Resting []string `json:"resting,omitempty"`
}

const (
	restFirst = time.Second
	restMost  = 5 * time.Minute
	// maxPanicsRecorded is how many panics of one start have their stack recorded. More are
	// counted.
	maxPanicsRecorded = 20
)

// keeper runs the tasks that go on for as long as the machine does.
func (m *machine) keeper() panics.Restarter {
	return panics.Restarter{MinBackoff: restFirst, MaxBackoff: restMost, BackingOff: func(where string, rests bool) {
		m.program.Update(func(s programState) programState {
			s.Resting = slices.DeleteFunc(slices.Clone(s.Resting), func(w string) bool { return w == where })
			if rests {
				s.Resting = append(s.Resting, where)
			}
			return s
		})
	}}
}

// panicked records a panic. It takes no lock that the one who panicked can hold, but for those of
// the events and of the record, whose own panics are not recovered twice: they have recorded by
// then, or the process ends.
func (m *machine) panicked(e *panics.Error) {
	count := 0
	m.program.Update(func(s programState) programState {
		s.Panics++
		count, s.Last, s.At = s.Panics, e.Error(), time.Now()
		return s
	})
	if count > maxPanicsRecorded {
		return
	}
	m.events.add("program", "failure", e.Error())
	for i, line := range slices.Collect(strings.Lines(e.Stack)) {
		if i >= stackLines {
			break
		}
		m.events.add("program", "stack", strings.TrimRight(line, "\n"))
	}
	m.record(audit.Call{Role: "nobody", Method: "panic", Target: e.Where, Status: codes.Internal.String(), Reason: e.Value})
}

// stackLines is how many lines of a stack become events: twice as many as calls. The log of events
// holds a day of a quiet machine.
const stackLines = 40

// failedProgram is what a caller hears whose call has panicked.
func failedProgram(err error) error {
	if e := (*panics.Error)(nil); errors.As(err, &e) {
		return status.Error(codes.Internal, e.Error()+"; the machine has recorded where (`orlopctl events`)")
	}
	return err
}

// programCheck says in the health what of the program has failed. It is not well while a task
// rests; a call that has panicked is counted alone, because nothing is left of it.
func programCheck(health *api.HealthResponse, s programState) {
	if s.Panics == 0 {
		return
	}
	ok, detail := len(s.Resting) == 0, fmt.Sprintf("failed %d times since the start, the last time in %s", s.Panics, s.Last)
	if !ok {
		detail = fmt.Sprintf("%s rests; %s", strings.Join(s.Resting, ", "), detail)
	}
	health.Checks = append(health.Checks, &api.HealthCheck{Name: "program", Ok: ok, Detail: detail, Since: timestamppb.New(s.At)})
	health.Healthy = health.Healthy && ok
}

// leftFor is why a version on trial is left that has panicked; empty if it has not.
func leftFor(version string, s programState) string {
	if s.Panics == 0 {
		return ""
	}
	return fmt.Sprintf("version %s did not prove itself: %s", version, s.Last)
}
