package kerneltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/vm"
	"github.com/orlop-os/orlop/vm/kerneltest/protocol"
)

// ends are the ways in which a boot can end.
var ends = map[string]Result{
	"passed": {Begun: true, Reported: true},
	"failed": {Begun: true, Reported: true, Failed: true, Outcome: protocol.Outcome{ExitCode: 1}},
	// The guest could not run the program.
	"no run": {Reported: true, Outcome: protocol.Outcome{ExitCode: 125, Failure: "exec format error"}},
	// The machine ended before the program started.
	"early": {Exit: vm.Exit{Reason: "guest-reset"}, Console: "early console"},
	// The emulator broke the kernel while the program ran.
	"broken": {Begun: true, Break: "Oops: int3", Console: "end of the console"},
	// The emulator broke the kernel after the end of the program.
	"too late": {Begun: true, Reported: true, Break: "Oops: int3"},
	// A test failed, and then the emulator broke the kernel.
	"both": {Begun: true, Failed: true, Break: "Oops: int3"},
	// The kernel panicked for another reason.
	"panicked": {Begun: true, Console: "Kernel panic"},
}

// TestRepeat runs a program on machines that end in the given ways, in this order. The function
// repeat must boot all of these machines, and return the result of the last boot.
func TestRepeat(t *testing.T) {
	for _, c := range []struct {
		boots string
		says  string // parts of the reasons that repeat gives
	}{
		{"passed", ""},
		{"failed", ""},
		{"no run", ""},
		{"panicked", ""},
		{"both", ""},     // a failed test never runs again
		{"too late", ""}, // the kernel broke while the machine switched off
		{"early, passed", "boot 2 of at most 3"},
		{"early, early, failed", "boot 2 of at most 3, boot 3 of at most 3"},
		{"early, early, early", "boot 2 of at most 3, boot 3 of at most 3"},
		{"broken, passed", "run 2 of at most 2"},
		{"broken, failed", "run 2 of at most 2"},
		{"broken, both", "run 2 of at most 2"},
		{"broken, broken", "run 2 of at most 2"},
		{"broken, panicked", "run 2 of at most 2"},
		{"early, early, broken, early, early, passed", "boot 2 of at most 3, boot 3 of at most 3, run 2 of at most 2, boot 2 of at most 3, boot 3 of at most 3"},
	} {
		t.Run(c.boots, func(t *testing.T) {
			left := strings.Split(c.boots, ", ")
			var said []string
			var stderr bytes.Buffer
			last := ends[left[len(left)-1]]
			o := Options{Stderr: &stderr, Repeated: func(why string) {
				_, rest, _ := strings.Cut(why, "(")
				number, _, _ := strings.Cut(rest, ")")
				said = append(said, number)
			}}
			result, err := repeat(t.Context(), o, func(context.Context) (Result, error) {
				if len(left) == 0 {
					t.Fatal("repeat boots more machines than expected")
				}
				end := ends[left[0]]
				left = left[1:]
				return end, nil
			})
			if err != nil || result != last || len(left) > 0 {
				t.Errorf("repeat returns %+v, %v, want %+v; boots that did not happen: %v", result, err, last, left)
			}
			if got := strings.Join(said, ", "); got != c.says {
				t.Errorf("the reasons contain %q, want %q", got, c.says)
			}
			if got := strings.Count(stderr.String(), "kernel test: the "); got != len(said) {
				t.Errorf("stderr has %d reasons for %d repetitions:\n%s", got, len(said), &stderr)
			}
		})
	}
}

// TestRepeatIsTold checks that stderr shows each repetition with its reason, and with the part of
// the console that shows the cause.
func TestRepeatIsTold(t *testing.T) {
	var stderr bytes.Buffer
	boots := []Result{ends["early"], ends["broken"], ends["passed"]}
	if _, err := repeat(t.Context(), Options{Stderr: &stderr}, func(context.Context) (Result, error) {
		end := boots[0]
		boots = boots[1:]
		return end, nil
	}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`kernel test: the machine boots again (boot 2 of at most 3), because it ended before the program started: %s
early console
kernel test: the program runs again (run 2 of at most 2), because the emulator broke the guest's kernel before a test failed
Oops: int3
`, ends["early"].Exit)
	if stderr.String() != want {
		t.Errorf("stderr has\n%s\nwant\n%s", &stderr, want)
	}
}

// TestRepeatErrors checks that no further boot follows if a machine cannot be started, if a machine
// hangs until the deadline, or if the command is stopped. As an exception, the program runs again
// if the machine hung until the deadline because the emulator broke the kernel.
func TestRepeatErrors(t *testing.T) {
	broken := errors.New("no machine")
	if _, err := repeat(t.Context(), Options{}, func(context.Context) (Result, error) { return Result{}, broken }); !errors.Is(err, broken) {
		t.Errorf("the error of a machine that does not start is %v", err)
	}
	hangs := func(end Result) func(context.Context) (Result, error) {
		return func(ctx context.Context) (Result, error) {
			<-ctx.Done()
			return end, context.Cause(ctx)
		}
	}
	for _, name := range []string{"early", "panicked"} {
		result, err := repeat(t.Context(), Options{Limit: time.Millisecond}, hangs(ends[name]))
		if err == nil || err.Error() != "deadline of 1ms passed" || result != ends[name] {
			t.Errorf("%s, and a deadline: repeat returns %+v, %v", name, result, err)
		}
	}
	runs := 0
	result, err := repeat(t.Context(), Options{Limit: time.Millisecond}, func(ctx context.Context) (Result, error) {
		if runs++; runs == 1 {
			return hangs(ends["broken"])(ctx)
		}
		return ends["passed"], nil
	})
	if err != nil || result != ends["passed"] || runs != 2 {
		t.Errorf("after a broken kernel and a deadline, repeat returns %+v, %v after %d runs", result, err, runs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := repeat(ctx, Options{}, func(ctx context.Context) (Result, error) {
		cancel()
		return hangs(ends["broken"])(ctx)
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("the error of a stopped command is %v", err)
	}
}

// TestMarks checks which outputs contain the mark of a failure, and that marks copies the output.
func TestMarks(t *testing.T) {
	for _, c := range []struct {
		output []string
		failed bool
	}{
		{nil, false},
		{[]string{"--- PASS: TestA (0.00s)\nPASS\n"}, false},
		{[]string{"--- FAIL: TestA (0.00s)\n"}, true},
		{[]string{"ok\n    --- FAIL: TestA/b (0.00s)\n    --- PASS: TestA/c\n"}, true},
		{[]string{"\x16--- FA", "IL: TestA (0.00s)\nmore\n"}, true},
		{[]string{"a\n", "--- FAIL: Test"}, true},
		{[]string{"FAIL\n"}, true},
		{[]string{"panic: test timed out after 10m0s\n"}, true},
		{[]string{"panic: oh [recovered]\n\ngoroutine 7 [running]:\n"}, true},
		{[]string{"fatal error: all goroutines are asleep - deadlock!\n"}, true},
		{[]string{"the log says --- FAIL: TestA and panic: no\nFAILURE\n"}, false},
		{[]string{strings.Repeat("x", 3*longestMark), "--- FAIL: TestA\n"}, false},
		{[]string{strings.Repeat("x", 3*longestMark), "\n--- FAIL: TestA\n"}, true},
	} {
		var copied bytes.Buffer
		m, silent := marks{to: &copied}, marks{}
		for _, part := range c.output {
			for _, to := range []*marks{&m, &silent} {
				if n, err := to.Write([]byte(part)); n != len(part) || err != nil {
					t.Errorf("Write of %.80q returns %d, %v", part, n, err)
				}
			}
		}
		if m.failed() != c.failed || silent.failed() != c.failed {
			t.Errorf("%.80q: failed returns %t and, without a copy, %t; want %t", c.output, m.failed(), silent.failed(), c.failed)
		}
		if copied.String() != strings.Join(c.output, "") {
			t.Errorf("the copy is %.80q, want %.80q", &copied, c.output)
		}
	}
	full := marks{to: closedWriter{}}
	if _, err := full.Write([]byte("--- FAIL: TestA\n")); !errors.Is(err, os.ErrClosed) || !full.failed() {
		t.Errorf("Write to a closed output returns %v, and failed returns %t", err, full.failed())
	}
}

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }
