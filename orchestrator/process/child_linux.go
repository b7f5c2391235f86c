package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// childGrace is the longest time that a child may take to stop. It is shorter than grace.
const childGrace = 6 * time.Second

// Child runs a command and waits for its end. The command has the user and the control group of
// this process, and the kernel kills it when this process dies. When ctx is done, Child sends
// SIGTERM to the command, kills it after childGrace, and returns nil. If the command ends before
// that, Child returns an error with the last line of standard error that states a problem. Child
// copies the standard error of the command to that of this process.
func Child(ctx context.Context, cmd *exec.Cmd) error {
	last := &lastLine{to: os.Stderr}
	cmd.Stdout, cmd.Stderr = os.Stdout, last
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The kernel sends this signal when the thread that has started the child ends (prctl(2),
	// PR_SET_PDEATHSIG). So the goroutine keeps its thread until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	// An error means that the command has ended.
	asked := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	killed := make(chan struct{})
	late := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(childGrace)
		defer timer.Stop()
		select {
		case <-timer.C:
			_ = cmd.Process.Kill()
		case <-killed:
		}
	})
	err := cmd.Wait()
	close(killed)
	asked()
	late()
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		return errors.New("the process ended by itself")
	}
	if line := last.line(); line != "" {
		return fmt.Errorf("%w: %s", err, line)
	}
	return err
}

// lastLine forwards all writes, and retains at most maxLastLine bytes of the last line that states
// a problem.
type lastLine struct {
	to io.Writer

	mu      sync.Mutex
	problem string
	current []byte
}

const maxLastLine = 300

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	for line := range bytes.Lines(p) {
		if room := maxLastLine - len(l.current); room > 0 {
			l.current = append(l.current, line[:min(room, len(line))]...)
		}
		if line[len(line)-1] == '\n' {
			l.remember()
			l.current = l.current[:0]
		}
	}
	l.mu.Unlock()
	return l.to.Write(p)
}

// wrong are the prefixes of lines that state why a process ends: the last message of the
// orchestrator, failures of Go, and errors of klog.
var wrong = []string{"orchestrator: ", "panic: ", "fatal error: ", "E", "F"}

func (l *lastLine) remember() {
	text := strings.TrimSpace(string(l.current))
	for _, prefix := range wrong {
		rest, has := strings.CutPrefix(text, prefix)
		// klog, for example "E1127 17:52:35.817596 …"
		if has && (len(prefix) > 1 || rest != "" && rest[0] >= '0' && rest[0] <= '9') {
			l.problem = text
		}
	}
}

func (l *lastLine) line() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remember()
	return strings.ToValidUTF8(l.problem, "")
}
