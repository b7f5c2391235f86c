package kerneltest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"time"
)

const (
	// maxBoots is the maximum number of boots if the machine ends before the program starts. Before
	// that, only the kernel and the init of the guest have run, so another boot hides no failed
	// test. The emulator sometimes breaks the kernel (vm.KernelBreak) so early that the console has
	// no message.
	maxBoots = 3
	// MaxRuns is the maximum number of runs of a program if the emulator breaks the kernel of the
	// machine. Options.Limit limits each run.
	MaxRuns = 2
)

// progress counts the boots of the present run that ended before the program started, and the runs
// in which the program started.
type progress struct{ boots, runs int }

// The method again decides after each boot whether the program runs once more. It returns the
// reason, or an empty string if the result of the boot is final.
//
//	the guest has reported the end of the program            the result is final
//	the machine ended before the program started             another boot, up to maxBoots
//	the machine ended later, after a failed test             the result is final
//	the machine ended later, and its kernel was broken (*)   another run, up to MaxRuns
//	the machine ended later, for another reason              the result is final
//
// (*) by the emulator, before a test failed (vm.KernelBreak)
func (p *progress) again(r Result) string {
	if r.Reported {
		return ""
	}
	if !r.Begun {
		if p.boots++; p.boots >= maxBoots {
			return ""
		}
		return fmt.Sprintf("the machine boots again (boot %d of at most %d), because it ended before the program started: %s", p.boots+1, maxBoots, r.Exit)
	}
	p.boots = 0
	if p.runs++; r.Failed || r.Break == "" || p.runs >= MaxRuns {
		return ""
	}
	return fmt.Sprintf("the program runs again (run %d of at most %d), because the emulator broke the guest's kernel before a test failed", p.runs+1, MaxRuns)
}

// repeat boots machines until a result is final, and returns this result. All boots of a run must
// end within o.Limit. A second run has the same limit again.
func repeat(ctx context.Context, o Options, boot func(context.Context) (Result, error)) (Result, error) {
	var p progress
	for began := time.Now(); ; {
		result, err := limited(ctx, o.Limit, began, boot)
		if err != nil && (ctx.Err() != nil || !result.Begun) {
			return result, err
		}
		why := p.again(result)
		if why == "" {
			return result, err
		}
		if result.Begun {
			began = time.Now()
		}
		if o.Stderr != nil {
			shown := result.Break
			if shown == "" {
				shown = result.Console
			}
			fmt.Fprintf(o.Stderr, "kernel test: %s\n%s\n", why, shown)
		}
		if o.Repeated != nil {
			o.Repeated(why)
		}
	}
}

// limited calls boot with the deadline of a run that began at the given time. A limit of 0 sets no
// deadline.
func limited(ctx context.Context, limit time.Duration, began time.Time, boot func(context.Context) (Result, error)) (Result, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, began.Add(limit), fmt.Errorf("deadline of %s passed", limit))
		defer cancel()
	}
	return boot(ctx)
}

// failureMark matches a line in which a test binary reports a failure: a failed test, also under
// `go test -json` (with a byte 0x16 before the mark), a panic, a deadline that passed, or a fatal
// error of Go.
var failureMark = regexp.MustCompile(`^[\x16 ]*(--- FAIL: |FAIL$|panic: |fatal error: )`)

// longestMark is the number of bytes at the start of a line that are searched for a mark.
const longestMark = 200

// marks is a writer that copies the output of a program and looks for the mark of a failure in its
// lines. A test that has not ended has no mark yet.
type marks struct {
	to    io.Writer // nil: the output is dropped
	line  []byte    // the start of the present line
	found bool
}

func (m *marks) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		text, ended := bytes.CutSuffix(line, []byte("\n"))
		m.line = append(m.line, text[:min(len(text), longestMark-len(m.line))]...)
		if ended {
			m.found = m.failed()
			m.line = m.line[:0]
		}
	}
	if m.to == nil {
		return len(p), nil
	}
	return m.to.Write(p)
}

// failed reports whether a line has the mark of a failure. It also checks the present line, which
// may be incomplete.
func (m *marks) failed() bool { return m.found || failureMark.Match(m.line) }
