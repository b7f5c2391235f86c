// Package panics turns a panic into a recorded error, so that a fault in one task does not end a
// process on which others depend. PID 1 uses it: an unrecovered panic ends this process, and with
// it the machine.
//
// The process sets the recorder once (OnPanic). Before that the package recovers nothing: in tests,
// and in processes that are restarted, a panic ends the process as usual. Some failures of the Go
// runtime (concurrent map writes, stack overflow, out of memory) cannot be recovered at all.
//
// The callers, not this package, decide which tasks may continue after a panic
// (docs/decisions/0059-panics.md).
package panics

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// MaxStack is the maximum length of a recorded stack, in bytes; the innermost calls come first.
const MaxStack = 8 << 10

// maxValue is the maximum length of a recorded panic value, in bytes, because it can contain text
// from a client.
const maxValue = 400

// Error is a recovered panic.
type Error struct {
	Where string // the task: "call /orlop.v1alpha1.Cluster/Health", "snapshots"
	Value string // the panic value, at most 400 bytes
	Stack string // at most MaxStack bytes
}

func (e *Error) Error() string { return fmt.Sprintf("%s: panic: %s", e.Where, e.Value) }

// recorder receives each panic. Without it no panic is recovered.
var recorder atomic.Pointer[func(*Error)]

// OnPanic sets the function that records panics. It runs on the goroutine that panicked. With nil,
// panics end the process again.
func OnPanic(record func(*Error)) {
	if record == nil {
		recorder.Store(nil)
		return
	}
	recorder.Store(&record)
}

// Do returns the result of f. If f panics, Do records the panic and returns an *Error.
func Do(where string, f func() error) (err error) {
	record := recorder.Load()
	if record == nil {
		return f()
	}
	defer func() {
		if value := recover(); value != nil {
			caught := &Error{Where: where, Value: cut(fmt.Sprint(value), maxValue), Stack: cut(string(debug.Stack()), MaxStack)}
			err = caught
			(*record)(caught)
		}
	}()
	return f()
}

func cut(text string, most int) string {
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// Guarded returns f with recording of its panics, for a group of goroutines.
func Guarded(where string, f func()) func() {
	return func() { _ = Do(where, func() error { f(); return nil }) } // Do has recorded it
}

// Go runs f on a new goroutine.
func Go(where string, f func()) { go Guarded(where, f)() }

// Restarter runs tasks that must run as long as the process. A task starts from its initial state
// in each run.
type Restarter struct {
	// MinBackoff is the delay after the first panic of a task. The delay doubles with each further
	// panic, up to MaxBackoff. A panic after a run longer than MaxBackoff counts as a first panic.
	MinBackoff, MaxBackoff time.Duration
	// BackingOff is called before the delay (true) and after it (false). It may be nil.
	BackingOff func(where string, rests bool)
}

// Go calls Run on a new goroutine.
func (k Restarter) Go(ctx context.Context, where string, f func(context.Context)) {
	go k.Run(ctx, where, f)
}

// Run runs f until it returns or ctx is done. After a panic it runs f again.
func (k Restarter) Run(ctx context.Context, where string, f func(context.Context)) {
	for failures := 1; ctx.Err() == nil; failures++ {
		began := time.Now()
		if Do(where, func() error { f(ctx); return nil }) == nil {
			return
		}
		if time.Since(began) > k.MaxBackoff {
			failures = 1
		}
		if !k.rest(ctx, where, backoff.Backoff{Min: k.MinBackoff, Max: k.MaxBackoff}.Delay(failures)) {
			return
		}
	}
}

// rest waits for the delay. It returns false if ctx was done first.
func (k Restarter) rest(ctx context.Context, where string, long time.Duration) bool {
	if k.BackingOff != nil {
		k.BackingOff(where, true)
		defer k.BackingOff(where, false)
	}
	return backoff.Sleep(ctx, long) == nil
}
