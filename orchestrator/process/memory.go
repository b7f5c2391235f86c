package process

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// HeapLimiter is how a process's heap is managed: let grow during the start, kept small afterwards.
//
// Collecting garbage is a seventh of a control plane's start when it is done as usual, and most of
// what the start makes is there to stay. So the collector rests until the process uses First bytes,
// and then works as usual. A first collection that comes late costs page faults, and scatters what
// stays over a heap that cannot be given back later.
type HeapLimiter struct {
	First int64 // bytes of memory in use when the collector starts to work
}

// quiet is how long after the process became ready the start's garbage is given back to the kernel.
// The first pods are started in this time, and a collection would take processor time from them.
const quiet = 20 * time.Second

// The collector's target (GOGC: garbage as a percentage of what lives) moves between lean and busy.
// An idle control plane makes little garbage, so it can be kept lean at no cost; one that works
// gets room, so that it is not slowed down.
const (
	lean  = 20
	busy  = 100
	roomy = 200 // during a start that outgrew its limit
	// A collection sooner after the last than this means that the heap is too tight, one later that
	// it is too wide.
	tight = 5 * time.Second
	wide  = 20 * time.Second
)

// Manage sets the collector for the start, at once, and returns a function to call when the process
// is ready.
func (m HeapLimiter) Manage(ctx context.Context) (settle func()) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(m.First)
	// The first collection means that the start needs more than Limit. From then on the heap grows
	// with what lives: a limit below that would have the collector work all the time, and a start
	// that hangs is worse than one that is fat.
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
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	settled.Store(true)
	debug.FreeOSMemory()
	debug.SetGCPercent(lean)
	follow(lean, time.Now(), time.Now)
}

// follow adapts the target after every collection.
func follow(percent int, last time.Time, now func() time.Time) {
	afterCollection(func() {
		at := now()
		next := target(percent, at.Sub(last))
		if next != percent {
			debug.SetGCPercent(next)
		}
		follow(next, at, now)
	})
}

// afterCollection calls do once, after the next collection: an object that nothing holds is cleaned
// up by it.
func afterCollection(do func()) {
	runtime.AddCleanup(new([16]byte), func(struct{}) { do() }, struct{}{})
}

// target is the collector's next target after a collection that came since after the one before it.
func target(percent int, since time.Duration) int {
	switch {
	case since < tight:
		return min(2*percent, busy)
	case since > wide:
		return max(percent/2, lean)
	}
	return percent
}
