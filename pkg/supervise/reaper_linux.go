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

// Exit is the way in which a process ended: with an exit status, or by a signal.
type Exit struct {
	Code   int            // exit status; 0 after a signal
	Signal syscall.Signal // the signal that killed it, or 0
}

// OK reports whether the process exited with status 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 }

// String returns, for example, "ended with status 1" or "was ended by signal 9 (killed)".
func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("was ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("ended with status %d", e.Code)
}

// Reaper starts processes and collects the exit status of every child of this process: the
// processes that it has started, and the orphans that PID 1 inherits.
//
// PID 1 must wait for any child, because it inherits orphans. Such a wait can also take the exit
// status of a child for which another goroutine is about to wait. Therefore only the Reaper waits,
// and every process is started by Start. The Reaper holds its lock while it creates a process and
// adds it to its table, and while it collects a process and removes it from the table. This has
// three effects:
//
//   - A child that exits at once cannot be collected before it is in the table.
//   - A process ID in the table belongs to the process in the table, because the kernel reuses the
//     ID of a child only after the child was collected. Signal holds the same lock, so it never
//     sends a signal to another process and needs no pidfd.
//   - If a child cannot execute its program, syscall.StartProcess itself waits for the child. The
//     Reaper cannot take the status of this child first, because Start holds the lock.
//
// A process with a Reaper must not use os/exec or os.StartProcess, because their Wait would find no
// child. A process has at most one Reaper, and the Loop of the Reaper must run.
type Reaper struct {
	mu        sync.Mutex
	processes map[int]*Process // by process ID
	orphan    func(pid int, exit Exit)
}

// NewReaper returns a reaper without processes. If orphan is not nil, the reaper calls it for each
// child that it has collected but not started. orphan must return quickly and must not call the
// reaper.
func NewReaper(orphan func(pid int, exit Exit)) *Reaper {
	return &Reaper{processes: map[int]*Process{}, orphan: orphan}
}

// Loop collects children until the context ends. At each SIGCHLD, it collects all children that
// have exited, because the kernel may send one signal for several children.
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

// collect collects one child that has exited. It reports whether there may be another one, so that
// the caller must call collect again.
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

// Process is a child that a Reaper has started.
type Process struct {
	PID    int
	reaper *Reaper
	done   chan struct{}
	exit   Exit // valid after done is closed
}

// Done returns a channel that is closed after the process has exited and its status was collected.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns the exit status of the process. The caller must wait for Done first.
func (p *Process) Exit() Exit { return p.exit }

// Signal sends a signal to the process, or to its whole process group if group is true. If the
// process has exited, Signal does nothing and returns nil.
func (p *Process) Signal(sig syscall.Signal, group bool) error {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.reaper.processes[p.PID] != p {
		return nil
	}
	target := p.PID
	if group {
		// Every process that a Reaper starts leads its own session and process group, so the ID of
		// the group is the process ID.
		target = -p.PID
	}
	if err := unix.Kill(target, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: cannot send signal %d: %w", p.PID, int(sig), err)
	}
	return nil
}

// Start starts a process with the given open files. It returns when the process runs the program.
// The error is the reason why the process could not be started.
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
