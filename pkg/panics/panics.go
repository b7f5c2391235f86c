// Package panics turns a panic into a recorded error. So a fault in one task does not end the
// process and all its other tasks. This is most important for PID 1, because a panic that ends PID
// 1 stops the machine.
//
// A process sets the recorder once (OnPanic). Without a recorder, for example in tests and in
// processes that machined restarts, the package recovers no panic, and a panic ends the process as
// usual. Some failures of the Go runtime cannot be recovered at all: concurrent map writes, stack
// overflow, out of memory.
//
// The package does not decide which tasks may continue after a panic; its callers do
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

// MaxStack is the maximum length of a recorded stack in bytes. The innermost calls are first, so a
// cut loses the outermost calls.
const MaxStack = 8 << 10

// maxValue is the maximum length of a recorded panic value in bytes. A value can contain text from
// a client.
const maxValue = 400

// Error is a recovered panic.
type Error struct {
	Where string // name of the task: "call /orlop.v1alpha1.Cluster/Health", "snapshots"
	Value string // panic value, at most maxValue bytes
	Stack string // stack of the goroutine, at most MaxStack bytes
}

func (e *Error) Error() string { return fmt.Sprintf("%s: panic: %s", e.Where, e.Value) }

// recorder receives each recovered panic. If it is nil, the package recovers no panic.
var recorder atomic.Pointer[func(*Error)]

// OnPanic sets the function that records panics. The function runs on the goroutine that panicked.
// With nil, a panic ends the process again.
func OnPanic(record func(*Error)) {
	if record == nil {
		recorder.Store(nil)
		return
	}
	recorder.Store(&record)
}

// Do runs f and returns its error. If f panics, Do records the panic and returns an *Error. where
// is the name of the task.
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

// Guarded returns a function that runs f and records its panic, for a group of goroutines.
func Guarded(where string, f func()) func() {
	return func() { _ = Do(where, func() error { f(); return nil }) } // Do has recorded the panic
}

// Go runs f on a new goroutine and records its panic.
func Go(where string, f func()) { go Guarded(where, f)() }

// Restarter runs tasks that must run for the life of the process. After a panic it runs the task
// again, from its initial state.
type Restarter struct {
	// MinBackoff is the delay after the first panic of a task. The delay doubles after each further
	// panic, up to MaxBackoff. After a run longer than MaxBackoff, the delay is MinBackoff again.
	MinBackoff, MaxBackoff time.Duration
	// BackingOff is called with true before a delay, and with false after it. It may be nil.
	BackingOff func(where string, rests bool)
}

// Go calls Run on a new goroutine.
func (k Restarter) Go(ctx context.Context, where string, f func(context.Context)) {
	go k.Run(ctx, where, f)
}

// Run runs f until it returns or ctx is done. After each panic it waits for the delay and runs f
// again.
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

// rest waits for the delay `long`. It returns false if ctx is done before the end of the delay.
func (k Restarter) rest(ctx context.Context, where string, long time.Duration) bool {
	if k.BackingOff != nil {
		k.BackingOff(where, true)
		defer k.BackingOff(where, false)
	}
	return backoff.Sleep(ctx, long) == nil
}
