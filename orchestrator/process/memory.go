package process

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// HeapLimiter manages a process's heap: the heap grows during the start and is kept small
// afterwards.
//
// With the usual settings, garbage collection is a seventh of a control plane's start, and most of
// the allocated objects are permanent. So the collector stays off until the process uses First
// bytes, and then works as usual. A late first collection costs page faults, and leaves the
// permanent objects scattered over a heap that cannot be returned to the kernel later.
type HeapLimiter struct {
	First int64 // bytes of memory in use when the collector begins to work
}

// quiet is the delay between readiness of the process and the return of the start's garbage to the
// kernel. The first pods start in this time, and a collection would take processor time from them.
const quiet = 20 * time.Second

// The collector's target (GOGC: garbage as a percentage of live memory) moves between lean and
// busy. An idle control plane makes little garbage, so a small heap costs nothing; a busy control
// plane gets more memory, so that the collector does not slow it down.
const (
	lean  = 20
	busy  = 100
	roomy = 200 // during a start that exceeds its limit
	// An interval between collections below tight means that the heap is too small, and above wide
	// that it is too large.
	tight = 5 * time.Second
	wide  = 20 * time.Second
)

// Manage sets the collector for the start at once, and returns a function to call when the process
// is ready.
func (m HeapLimiter) Manage(ctx context.Context) (settle func()) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(m.First)
	// The first collection means that the start needs more than First bytes. From then on the heap
	// grows with the live memory: with a lower limit the collector would work all the time, and a
	// stalled start is worse than a large heap.
	canary := new([16]byte)
	var settled atomic.Bool
	runtime.AddCleanup(canary, func(struct{}) {
		if !settled.Load() {
			debug.SetGCPercent(roomy)
			debug.SetMemoryLimit(math.MaxInt64)
		}
	}, struct{}{})
	var once sync.Once
	return func() {
		once.Do(func() {
			go settleDown(ctx, &settled)
		})
	}
}

func settleDown(ctx context.Context, settled *atomic.Bool) {
	if backoff.Sleep(ctx, quiet) != nil {
		return
	}
	settled.Store(true)
	debug.FreeOSMemory()
	debug.SetGCPercent(lean)
	adapt(lean, time.Now(), time.Now)
}

// adapt adjusts the target after every collection.
func adapt(percent int, last time.Time, now func() time.Time) {
	afterCollection(func() {
		at := now()
		next := target(percent, at.Sub(last))
		if next != percent {
			debug.SetGCPercent(next)
		}
		adapt(next, at, now)
	})
}

// afterCollection calls do once after the next collection, which runs the cleanup of an unreachable
// object.
func afterCollection(do func()) {
	runtime.AddCleanup(new([16]byte), func(struct{}) { do() }, struct{}{})
}

// target returns the collector's next target, for the time since the previous collection.
func target(percent int, since time.Duration) int {
	switch {
	case since < tight:
		return min(2*percent, busy)
	case since > wide:
		return max(percent/2, lean)
	}
	return percent
}
