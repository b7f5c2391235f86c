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

// Exit is how a process ended.
type Exit struct {
	Code   int            // exit status; 0 when a signal ended it
	Signal syscall.Signal // the signal that ended it, or 0
}

// OK says whether the process ended by itself with status 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 }

// String is "ended with status 1" or "was ended by signal 9 (killed)".
func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("was ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("ended with status %d", e.Code)
}

// Reaper starts processes and collects the exit status of every child this process has, its own and
// the orphans that PID 1 inherits.
//
// Two who wait for children get into each other's way: waiting for "any child", as PID 1 must, also
// takes the status of a child that somebody else is about to wait for. So here only one waits, and
// everyone who starts a process does it through Start. The lock is the whole trick: it is held
// while a process is made and entered into the table, and while one is collected and struck from
// it. Therefore
//
//   - a child that ends at once cannot be collected before it is in the table;
//   - a process id in the table cannot have been given to another process, because a child keeps its id until it is
//     collected; so Signal, under the same lock, never hits a stranger and needs no pidfd;
//   - the wait that syscall.StartProcess does itself, for a child that could not execute its program, is not disturbed.
//
// os/exec and os.StartProcess must not be used in a process that has a Reaper: their Wait would
// find no child. There is at most one Reaper in a process, and its Loop must run.
type Reaper struct {
	mu        sync.Mutex
	processes map[int]*Process
	orphan    func(pid int, exit Exit)
}

// NewReaper returns a reaper that calls orphan (if not nil) for each child it collected that it had
// not started. orphan must return quickly and not call the reaper.
func NewReaper(orphan func(pid int, exit Exit)) *Reaper {
	return &Reaper{processes: map[int]*Process{}, orphan: orphan}
}

// Loop collects children until the context ends. It sleeps between the signals (SIGCHLD) that
// announce them; the kernel may announce several with one signal, so each time all that are there
// are taken.
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

// collect takes one child that has ended and says whether there was one.
func (r *Reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 { // ECHILD: there are no children at all
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

// Process is a child that was started by a Reaper.
type Process struct {
	PID    int
	reaper *Reaper
	done   chan struct{}
	exit   Exit // valid once done is closed
}

// Done returns a channel that is closed when the process has ended and was collected.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the process ended. It must not be called before Done is closed.
func (p *Process) Exit() Exit { return p.exit }

// Signal sends a signal to the process; to all of its process group when group is set. It does
// nothing when the process has ended.
func (p *Process) Signal(sig syscall.Signal, group bool) error {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.reaper.processes[p.PID] != p {
		return nil
	}
	target := p.PID
	if group {
		// every process is started as the leader of a session, so its group has its number
		target = -p.PID
	}
	if err := unix.Kill(target, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: cannot send signal %d: %w", p.PID, int(sig), err)
	}
	return nil
}

// Start starts a process and returns once its program is executed; the error says why it could not
// be.
func (r *Reaper) Start(spec Spec) (*Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := spec.start()
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, reaper: r, done: make(chan struct{})}
	r.processes[pid] = p
	return p, nil
}
