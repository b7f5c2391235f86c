package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envChild is an environment variable that turns the test binary into a child. Its value selects
// the behavior of the child.
const envChild = "ORLOP_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(envChild) {
	case "fails":
		fmt.Fprintln(os.Stderr, "orchestrator: kube-controller-manager: no token\nI1127 17:52:35.817596 1 x.go:1] a later word")
		os.Exit(3)
	case "waits":
		down := make(chan os.Signal, 1)
		signal.Notify(down, syscall.SIGTERM)
		fmt.Println("up")
		<-down
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child returns a command that runs the test binary as a child with this behavior: fails or waits.
func child(what string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+what)
	return cmd
}

// TestChildReportsCause checks that the error of Child has the line in which the child named the
// cause.
func TestChildReportsCause(t *testing.T) {
	err := Child(t.Context(), child("fails"))
	if err == nil || err.Error() != "exit status 3: orchestrator: kube-controller-manager: no token" {
		t.Errorf("%v", err)
	}
}

// TestChildStops checks that Child ends its child when the context ends, without an error, and
// before it would kill the child.
func TestChildStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	if err := Child(ctx, child("waits")); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took >= childGrace {
		t.Errorf("the child ended after %s, want less than childGrace", took)
	}
}

// TestLastLine checks that line returns the last line that states a problem, for example an error
// or a panic. The writes may contain parts of lines. A long line is shortened.
func TestLastLine(t *testing.T) {
	for _, c := range []struct {
		writes []string
		want   string
	}{
		{[]string{"orchestrator: one\norchestrator: two\n"}, "orchestrator: two"},
		{[]string{"pan", "ic: one\n", "\n", "goroutine 1 [running]:\n"}, "panic: one"},
		{[]string{"I1127 17:52:35.817596 1 x.go:1] all is well\nEverything is\nF"}, ""},
		{[]string{"E1127 17:52:35.817596 1 x.go:1] one\nI1127 17:52:35.817596 1 x.go:1] two\n"}, "E1127 17:52:35.817596 1 x.go:1] one"},
		{[]string{"F1127 one\nfatal error: hal", "f"}, "fatal error: half"},
		{[]string{"panic: " + strings.Repeat("x", 1000) + "\n"}, "panic: " + strings.Repeat("x", maxLastLine-len("panic: "))},
	} {
		l := &lastLine{to: io.Discard}
		for _, w := range c.writes {
			if n, err := l.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := l.line(); got != c.want {
			t.Errorf("%q: %q, want %q", c.writes, got, c.want)
		}
	}
}
