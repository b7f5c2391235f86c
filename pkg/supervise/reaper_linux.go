package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit is the exit status of a process.
type Exit struct {
	Code   int            // exit status; 0 after a signal
	Signal syscall.Signal // the signal that killed it, or 0
}

// OK reports whether the process exited with status 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 }

// String returns "ended with status 1" or "was ended by signal 9 (killed)".
func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("was ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("ended with status %d", e.Code)
}

// Reaper starts processes and collects the exit status of every child of this process: its own
// children, and the orphans that PID 1 inherits.
//
// Two concurrent waits for children conflict: a wait for "any child", as PID 1 needs it, also takes
// the status of a child for which another goroutine is about to wait. Therefore only the Reaper
// waits, and every process is started with Start. Its lock is the whole trick. The Reaper holds the
// lock while it creates a process and adds it to the table, and while it collects a process and
// removes it from the table. Therefore
//
//   - a child that exits at once cannot be collected before it is in the table;
//   - a process ID in the table cannot belong to another process, because a child keeps its ID
//     until it is collected; so Signal, under the same lock, never hits another process and needs
//     no pidfd;
//   - the wait in syscall.StartProcess, for a child that could not execute its program, is not
//     disturbed.
//
// A process with a Reaper must not use os/exec and os.StartProcess, because their Wait would find
// no child. There is at most one Reaper in a process, and its Loop must run.
type Reaper struct {
	mu        sync.Mutex
	processes map[int]*Process
	orphan    func(pid int, exit Exit)
}

// NewReaper returns a reaper. It calls orphan (if not nil) for each collected child that it did not
// start. orphan must return quickly and must not call the reaper.
func NewReaper(orphan func(pid int, exit Exit)) *Reaper {
	return &Reaper{processes: map[int]*Process{}, orphan: orphan}
}

// Loop collects children until the context ends. It waits for SIGCHLD. The kernel may send one
// signal for several children, so Loop collects all exited children each time.
func (r *Reaper) Loop(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	for {
		for r.collect() {
		}
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
	}
}

// collect collects an exited child and reports whether there was a child.
func (r *Reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 { // ECHILD: there are no children
		return false
	}
	exit := Exit{Code: status.ExitStatus()}
	if status.Signaled() {
		exit = Exit{Signal: status.Signal()}
	}
	if p, ours := r.processes[pid]; ours {
		delete(r.processes, pid)
		p.exit = exit
		close(p.done)
	} else if r.orphan != nil {
		r.orphan(pid, exit)
	}
	return true
}

// Process is a child started by a Reaper.
type Process struct {
	PID    int
	reaper *Reaper
	done   chan struct{}
	exit   Exit // valid after done is closed
}

// Done returns a channel that is closed when the process has exited and was collected.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns the exit status. It must not be called before Done is closed.
func (p *Process) Exit() Exit { return p.exit }

// Signal sends a signal to the process, or to its whole process group if group is set. It does
// nothing if the process has exited.
func (p *Process) Signal(sig syscall.Signal, group bool) error {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.reaper.processes[p.PID] != p {
		return nil
	}
	target := p.PID
	if group {
		// every process is the leader of a session, so its group has the same number
		target = -p.PID
	}
	if err := unix.Kill(target, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: cannot send signal %d: %w", p.PID, int(sig), err)
	}
	return nil
}

// Start starts a process with the files. It returns after the program was executed, or with the
// reason of the failure.
func (r *Reaper) Start(spec Spec, files Files) (*Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := spec.start(files)
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, reaper: r, done: make(chan struct{})}
	r.processes[pid] = p
	return p, nil
}
