package power

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/panics"
	"golang.org/x/sys/unix"
)

// Config is the configuration of a shutdown.
type Config struct {
	// Pods stops the pods, and the services that would restart pods. Services stops all services.
	// Each function returns at the latest when its context ends. They may be nil.
	Pods, Services func(context.Context) error
	// Wipe erases volumes after all file systems are unmounted. It is nil if the shutdown is not a
	// reset.
	Wipe func(context.Context) error
	// Last runs before reboot(2), which may hang in a driver. The caller has to stop feeding the
	// watchdog in Last, so the watchdog resets the machine if reboot(2) hangs. May be nil.
	Last func()
	// Report receives the name of each step at its start (err is nil), and each error of a step. It
	// must not block. May be nil.
	Report func(message string, err error)
}

// Machine performs a shutdown.
type Machine struct {
	config Config
	// Tests replace these functions. kill sends a signal to every process except this one; running
	// returns the number of these processes.
	kill    func(unix.Signal) error
	running func() (int, error)
	unmount func(context.Context) error
	sync    func()
	reboot  func(cmd int) error
}

// New returns a Machine, which can shut down once.
func New(c Config) *Machine {
	if c.Report == nil {
		c.Report = func(string, error) {}
	}
	if c.Last == nil {
		c.Last = func() {}
	}
	return &Machine{
		config: c, running: countProcesses, sync: unix.Sync, reboot: unix.Reboot,
		// PID -1 means all processes that this process may signal, except itself (kill(2)).
		kill: func(s unix.Signal) error {
			if err := unix.Kill(-1, s); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			return nil
		},
		unmount: func(ctx context.Context) error { return unmountAll(ctx, c.Report) },
	}
}

// forcedRebootDelay is the time after the deadline of the last step at which the machine reboots
// unconditionally. It applies if a step or the code between two steps hangs.
const forcedRebootDelay = 5 * time.Second

// Shutdown shuts the machine down within the time total. It returns only if the kernel rejects the
// shutdown.
func (m *Machine) Shutdown(mode Mode, total time.Duration) error {
	cmd := unix.LINUX_REBOOT_CMD_RESTART
	if mode == PowerOff {
		cmd = unix.LINUX_REBOOT_CMD_POWER_OFF
	}
	steps := Plan(total)
	begin := time.Now()
	last := time.AfterFunc(steps[len(steps)-1].By+forcedRebootDelay, func() {
		m.config.Last()
		_ = m.reboot(cmd)
	})
	defer last.Stop()
	for _, step := range steps {
		do := m.step(step.Do)
		if do == nil {
			continue
		}
		m.config.Report(string(step.Do), nil)
		if err := within(begin.Add(step.By), do); err != nil {
			m.config.Report(string(step.Do), err)
		}
	}
	m.config.Report(string(mode), nil)
	m.config.Last()
	if err := m.reboot(cmd); err != nil {
		return fmt.Errorf("machine: cannot %s: %w", mode, err)
	}
	return nil
}

// The function within runs do until the deadline, and returns its error. If do does not return in
// time, the function returns an error, and do continues to run in its goroutine.
func within(deadline time.Time, do func(context.Context) error) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- panics.Do("shutdown", func() error { return do(ctx) }) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	// A function that returns at the end of its context gets a moment to report the remaining work.
	moment := time.NewTimer(100 * time.Millisecond)
	defer moment.Stop()
	select {
	case err := <-result:
		return err
	case <-moment.C:
		return errors.New("not finished in time; the shutdown continues")
	}
}

func (m *Machine) step(name StepName) func(context.Context) error {
	switch name {
	case EndPods:
		return m.config.Pods
	case StopServices:
		return m.config.Services
	case TermProcesses:
		return func(ctx context.Context) error { return m.endAll(ctx, unix.SIGTERM) }
	case KillProcesses:
		return func(ctx context.Context) error { return m.endAll(ctx, unix.SIGKILL) }
	case UnmountAll:
		return m.unmount
	case WipeDisks:
		return m.config.Wipe
	case SyncDisks:
		return func(context.Context) error { m.sync(); return nil }
	}
	return nil
}

// endAll sends a signal to every other process and waits until no process is left. It returns an
// error with the number of remaining processes when ctx ends.
func (m *Machine) endAll(ctx context.Context, s unix.Signal) error {
	left, err := m.running()
	if err != nil || left == 0 {
		return err
	}
	if err := m.kill(s); err != nil {
		return fmt.Errorf("processes: cannot send signal %d: %w", int(s), err)
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d processes are left", left)
		}
		if left, err = m.running(); err != nil || left == 0 {
			return err
		}
	}
}

// countProcesses returns the number of other processes. It does not count kernel threads and
// zombies: they have no executable.
func countProcesses() (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("processes: cannot list: %w", err)
	}
	count := 0
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if _, err := os.Readlink("/proc/" + entry.Name() + "/exe"); err == nil {
			count++
		}
	}
	return count, nil
}

// unmountAll unmounts the targets of PlanUnmount. If a target is busy, it remounts the target
// read-only, which writes its data to the disk.
func unmountAll(ctx context.Context, report func(string, error)) error {
	mounts, err := mount.List()
	if err != nil {
		return err
	}
	for _, target := range PlanUnmount(mounts) {
		if ctx.Err() != nil {
			return fmt.Errorf("%s and earlier mounts: not unmounted in time", target)
		}
		// One attempt is enough, because no program starts any more.
		err := mount.UnmountOnce(target)
		if err == nil {
			continue
		}
		if readonly := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); readonly != nil {
			err = errors.Join(err, fmt.Errorf("%s: cannot make read-only: %w", target, readonly))
		}
		report(string(UnmountAll)+" "+target, errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return nil
}
