// Package boot runs the steps of the boot in order, with a deadline. It does not know the steps:
// machined/boot.go has their table.
package boot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Deadline bounds the boot: if its steps take longer in total, the machine resets. The longest step
// is the check of a large DATA partition: ext4 replays its journal in seconds, and a full check of
// 10 TB takes about ten minutes.
const Deadline = 30 * time.Minute

// checkDeadline bounds the boot while e2fsck runs. A slow disk, or a disk with very many files,
// takes hours, and a reset would restart the check forever.
const checkDeadline = 24 * time.Hour

// failPause is the time for which the console shows a failure before the machine resets.
const failPause = 10 * time.Second

// Step is a step of the boot of a machine M.
type Step[M any] struct {
	Name string
	// WaitsFor names the resource for which the step may have to wait, for the console; empty if it
	// waits for no external resource.
	WaitsFor string
	Do       func(ctx context.Context, m M) error
	// Remaining returns the time that the rest of the boot has after the step; 0, or a nil
	// function, leaves the deadline unchanged.
	Remaining func(m M) time.Duration
}

// Deps is the environment of a boot.
type Deps struct {
	Stopping func() bool                 // reports whether a shutdown has begun
	Enter    func(name, waitsFor string) // publishes the present step
	Mark     func(name string)           // records the time of a completed step
	Console  func(line string)
	Reset    func(why string)
	Checking func() bool // reports whether e2fsck runs (func Checking)
}

// Run runs the steps. If a step fails, it reports the step and its error and resets the machine:
// another attempt, or another slot, can succeed, and a stopped machine helps no operator.
func Run[M any](ctx context.Context, steps []Step[M], m M, d Deps) {
	limit := limit{began: time.Now(), timer: time.NewTimer(Deadline), deps: d}
	defer limit.timer.Stop()
	d.Mark("machined")
	for _, s := range steps {
		if d.Stopping() {
			return
		}
		d.Enter(s.Name, s.WaitsFor)
		done := make(chan error, 1)
		go func() { done <- panics.Do("boot step "+s.Name, func() error { return s.Do(ctx, m) }) }()
		if err := limit.await(ctx, done); err != nil {
			d.Console(fmt.Sprintf("boot: %s: %v; resetting in %v", s.Name, err, failPause))
			<-time.After(failPause)
			d.Reset("boot: " + s.Name + " failed")
			return
		}
		d.Mark(s.Name)
		if s.Remaining == nil {
			continue
		}
		if left := s.Remaining(m); left > 0 {
			limit.timer.Reset(left)
		}
	}
}

// limit is the deadline of a boot.
type limit struct {
	began time.Time
	timer *time.Timer
	deps  Deps
}

// await waits for a step until the deadline.
func (l limit) await(ctx context.Context, done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.timer.C:
			took := time.Since(l.began).Round(time.Minute)
			if took >= checkDeadline || !l.deps.Checking() {
				return fmt.Errorf("not done within %v", took)
			}
			l.deps.Console(fmt.Sprintf("storage: e2fsck still checks a disk after %v; the boot continues afterwards", took))
			l.timer.Reset(Deadline)
		}
	}
}

// Checking reports whether e2fsck runs, from the directory of the processes (proc_pid_comm(5)).
func Checking(proc string) bool {
	all, _ := filepath.Glob(proc + "/[0-9]*/comm") // the pattern is valid
	return slices.ContainsFunc(all, func(path string) bool {
		name, err := os.ReadFile(path)
		return err == nil && string(name) == "e2fsck\n"
	})
}
