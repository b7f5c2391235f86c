// Package simtest simulates events with a virtual clock, a random source and a log. The test
// defines the events and checks its guarantees. With the same seed, a simulation repeats exactly.
package simtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Simulation is one run of a simulation. New creates it.
type Simulation struct {
	Random *rand.Rand
	Now    time.Duration // the virtual time since the beginning
	t      testing.TB
	events []event // sorted by time, the latest event first
	log    []string
}

type event struct {
	at time.Duration
	do func()
}

// Begin returns the time that a correct clock has at the beginning of a simulation.
func Begin() time.Time { return time.Unix(1_000_000, 0) }

// New returns a simulation without events. Simulations with the same seed and different streams
// have independent random numbers.
func New(t testing.TB, seed, stream uint64) *Simulation {
	w := &Simulation{t: t, Random: rand.New(rand.NewPCG(seed, stream))}
	w.Logf("seed %d", seed)
	return w
}

// Run processes events, each at its time, until the virtual time has reached the parameter until.
// It panics if no event is left before this time.
func (w *Simulation) Run(until time.Duration) {
	for w.Now < until {
		last := len(w.events) - 1
		next := w.events[last]
		w.events[last] = event{}
		w.events = w.events[:last]
		w.Now = next.at
		next.do()
	}
}

// In schedules an event: a call of the function do after the delay d. Events for the same time run
// in the order in which they were scheduled.
func (w *Simulation) In(d time.Duration, do func()) {
	at := w.Now + d
	i, _ := slices.BinarySearchFunc(w.events, at, func(e event, at time.Duration) int {
		if e.at > at {
			return -1
		}
		return 1
	})
	w.events = slices.Insert(w.events, i, event{at, do})
}

// UpTo returns a random duration between one nanosecond and d.
func (w *Simulation) UpTo(d time.Duration) time.Duration {
	return time.Duration(w.Random.Int64N(int64(d)) + 1)
}

// Logf adds an entry to the log of the simulation, with the virtual time.
func (w *Simulation) Logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8.3fs ", w.Now.Seconds())+fmt.Sprintf(format, args...))
}

// Fail adds an entry to the log, prints the last 80 entries, and ends the test.
func (w *Simulation) Fail(format string, args ...any) {
	w.t.Helper()
	w.Logf(format, args...)
	w.t.Fatalf("%s", strings.Join(w.log[max(0, len(w.log)-80):], "\n"))
}
