// Package panics turns a panic into an error that is recorded, so that a fault in one task does not
// end a process that others depend on. PID 1 uses it: a panic that nothing recovers ends that
// process, and with it the machine.
//
// The process says once who records (OnPanic). Until then nothing is recovered: in tests, and in
// processes that are started again when they end, a panic ends the process as usual. What Go itself
// ends a process for (concurrent map writes, a stack that is too deep, no memory) cannot be
// recovered by anything.
//
// The package does not decide which task may go on after a panic; its callers do
// (docs/decisions/0059-panics.md).
package panics

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// MaxStack is how much of a stack is kept, in bytes: the innermost calls come first.
const MaxStack = 8 << 10

// maxValue is how much of what a panic says is kept, in bytes: a caller's own words can be in it.
const maxValue = 400

// Error is a panic that was recovered.
type Error struct {
	Where string // the task: "call /orlop.v1alpha1.Cluster/Health", "snapshots"
	Value string // what the panic said, at most 400 bytes
	Stack string // at most MaxStack bytes
}

func (e *Error) Error() string { return fmt.Sprintf("%s: the program failed: %s", e.Where, e.Value) }

// recorder is who is told of each panic; nil: nobody, and nothing is recovered.
var recorder atomic.Pointer[func(*Error)]

// OnPanic has record told of each panic from now on, on the goroutine that panicked. nil has panics
// end the process again.
func OnPanic(record func(*Error)) {
	if record == nil {
		recorder.Store(nil)
		return
	}
	recorder.Store(&record)
}

// Do returns what f returns. Where f panics, that is recorded, and the error is an *Error.
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

// Guarded is f with its panics recorded, for a group of goroutines to run.
func Guarded(where string, f func()) func() {
	return func() { _ = Do(where, func() error { f(); return nil }) } // it was recorded
}

// Go runs f on a goroutine of its own.
func Go(where string, f func()) { go Guarded(where, f)() }

// Restarter runs tasks that are to go on for as long as the process does. Each begins from nothing
// whenever it is run.
type Restarter struct {
	// MinBackoff is how long a task rests after its first panic. It rests twice as long after each
	// further one, up to MaxBackoff; a run that took longer than MaxBackoff counts as a first one
	// again.
	MinBackoff, MaxBackoff time.Duration
	// BackingOff is told before a task rests, and afterwards. It may be nil.
	BackingOff func(where string, rests bool)
}

// Go is Run on a goroutine of its own.
func (k Restarter) Go(ctx context.Context, where string, f func(context.Context)) {
	go k.Run(ctx, where, f)
}

// Run runs f until it returns, or ctx is done. After a panic it is run again.
func (k Restarter) Run(ctx context.Context, where string, f func(context.Context)) {
	for rest := k.MinBackoff; ctx.Err() == nil; rest = min(2*rest, k.MaxBackoff) {
		began := time.Now()
		if Do(where, func() error { f(ctx); return nil }) == nil {
			return
		}
		if time.Since(began) > k.MaxBackoff {
			rest = k.MinBackoff
		}
		if !k.rest(ctx, where, rest) {
			return
		}
	}
}

// rest is false when ctx was done first.
func (k Restarter) rest(ctx context.Context, where string, long time.Duration) bool {
	if k.BackingOff != nil {
		k.BackingOff(where, true)
		defer k.BackingOff(where, false)
	}
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
