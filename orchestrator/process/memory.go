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

// HeapLimiter controls the heap of a process: the heap may grow during the start, and is small
// afterwards.
//
// Most objects that a control plane allocates during its start are permanent, and with the usual
// settings a seventh of the start is garbage collection. So the collector is off until the process
// uses First bytes of memory, and then works as usual. First must not be too large: a late first
// collection causes page faults, and leaves the permanent objects scattered over a heap that the
// process cannot return to the kernel.
type HeapLimiter struct {
	First int64 // the memory in use, in bytes, at which the collector begins to work
}

// quiet is the delay between the readiness of the process and the collection that returns memory to
// the kernel. The first pods start in this time, and the collection would take processor time from
// them.
const quiet = 20 * time.Second

// The target of the collector (GOGC) is the garbage as a percentage of the live memory. It is
// between lean and busy. An idle control plane makes little garbage, so a small heap costs little
// time. A busy control plane gets more memory, so that the collector does not slow it down.
const (
	lean  = 20
	busy  = 100
	roomy = 200 // the target during a start that has exceeded First
	// tight and wide are intervals between two collections. After a shorter interval than tight,
	// the heap is too small. After a longer interval than wide, it is too large.
	tight = 5 * time.Second
	wide  = 20 * time.Second
)

// Manage sets the collector for the start. It returns the function settle, which the caller calls
// when the process is ready. Further calls of settle have no effect.
func (m HeapLimiter) Manage(ctx context.Context) (settle func()) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(m.First)
	// The cleanup of canary runs at the first collection, when the start has used First bytes. From
	// then on the heap may grow with the live memory. A fixed limit would make the collector run
	// all the time, and so could stall the start, which is worse than a large heap.
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

// settleDown ends the settings of the start after the time quiet, and then adapts the target until
// the process ends.
func settleDown(ctx context.Context, settled *atomic.Bool) {
	if backoff.Sleep(ctx, quiet) != nil {
		return
	}
	settled.Store(true)
	debug.FreeOSMemory()
	debug.SetGCPercent(lean)
	adapt(lean, time.Now(), time.Now)
}

// adapt adjusts the target after every collection. percent is the current target, last the time of
// the last collection.
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

// afterCollection calls do once, after the next collection. It uses the cleanup of an unreachable
// object.
func afterCollection(do func()) {
	runtime.AddCleanup(new([16]byte), func(struct{}) { do() }, struct{}{})
}

// target returns the next target of the collector, in percent. since is the time between the last
// two collections.
func target(percent int, since time.Duration) int {
	switch {
	case since < tight:
		return min(2*percent, busy)
	case since > wide:
		return max(percent/2, lean)
	}
	return percent
}
