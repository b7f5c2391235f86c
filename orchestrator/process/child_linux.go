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

// childGrace is how long a child may take to stop; it is less than grace.
const childGrace = 6 * time.Second

// Child runs a command to its end, as this process's user and in its control group. The command
// ends with this process whatever ends that. When ctx is done it is asked to stop, and the answer
// is nil. An error carries the last line of the command's standard error, which goes to this
// process's, too, that says what is wrong.
func Child(ctx context.Context, cmd *exec.Cmd) error {
	last := &lastLine{to: os.Stderr}
	cmd.Stdout, cmd.Stderr = os.Stdout, last
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The kernel sends that signal when the thread ends that has started the child (prctl(2),
	// PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	// it may have ended
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

// lastLine passes on what is written, and remembers the last line of it that says what is wrong, up
// to maxLastLine bytes.
type lastLine struct {
	to io.Writer

	mu      sync.Mutex
	kept    string
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
			l.keep()
			l.current = l.current[:0]
		}
	}
	l.mu.Unlock()
	return l.to.Write(p)
}

// wrong are the beginnings of lines that say why a process ends: its own last word, Go's, and
// klog's errors.
var wrong = []string{"orchestrator: ", "panic: ", "fatal error: ", "E", "F"}

func (l *lastLine) keep() {
	text := strings.TrimSpace(string(l.current))
	for _, prefix := range wrong {
		rest, has := strings.CutPrefix(text, prefix)
		// "E1127 17:52:35.817596 …"
		if has && (len(prefix) > 1 || rest != "" && rest[0] >= '0' && rest[0] <= '9') {
			l.kept = text
		}
	}
}

func (l *lastLine) line() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep()
	return strings.ToValidUTF8(l.kept, "")
}
