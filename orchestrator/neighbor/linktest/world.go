// Package linktest gives a simulation machines on one link, in a time of its own: packets take a
// while or are lost, machines stand still, die and start again, their links go down, and the
// network is cut. What the machines do, and what has to hold, is the test's.
package linktest

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// FrameTime is the most that a packet takes on the link.
const FrameTime = 5 * time.Millisecond

// Begin is the time of a clock without an offset when the world begins.
func Begin() time.Time { return time.Unix(1_000_000, 0) }

// Simulation is one run. Make it with New.
type Simulation struct {
	Random *rand.Rand
	Loss   float64       // of packets, up to 1
	Now    time.Duration // since it began
	t      testing.TB
	events events
	order  int
	log    []string
}

// Machine is one on the link. The zero Machine has no power and no link.
type Machine struct {
	Running bool          // else it stands still, or has no power
	Link    bool          // it is up
	Side    int           // of a network that is cut; those of one side hear each other
	Offset  time.Duration // of its clock
	// how often it was started or lost its power: what is under way for the one before does not
	// count
	born    int
	waiting []func() // what a machine that stands still does when it goes on
}

type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// New makes a world without machines; of each three one loses packets.
func New(t testing.TB, seed, stream uint64) *Simulation {
	w := &Simulation{t: t, Random: rand.New(rand.NewPCG(seed, stream))}
	if seed%3 == 0 {
		w.Loss = 0.05
	}
	w.Logf("seed %d, loss %v", seed, w.Loss)
	return w
}

// Run lets things happen until a time.
func (w *Simulation) Run(until time.Duration) {
	for w.Now < until {
		next := heap.Pop(&w.events).(event)
		w.Now = next.at
		next.do()
	}
}

// Logf writes into the log of the world, which is shown when it fails.
func (w *Simulation) Logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8.3fs ", w.Now.Seconds())+fmt.Sprintf(format, args...))
}

// Fail ends the test, and shows what happened last.
func (w *Simulation) Fail(format string, args ...any) {
	w.t.Helper()
	w.Logf(format, args...)
	w.t.Fatalf("%s", strings.Join(w.log[max(0, len(w.log)-80):], "\n"))
}

// In does something after a time.
func (w *Simulation) In(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.events, event{w.Now + d, w.order, do})
}

// UpTo is a random time.
func (w *Simulation) UpTo(d time.Duration) time.Duration {
	return time.Duration(w.Random.Int64N(int64(d)) + 1)
}

// Clock is the time as a machine has it.
func (w *Simulation) Clock(m *Machine) time.Time { return Begin().Add(w.Now + m.Offset) }

// Of does something for a machine after a time, if it is still the same: when it goes on, if it
// stands still.
func (w *Simulation) Of(m *Machine, d time.Duration, do func()) {
	born := m.born
	w.In(d, func() {
		switch {
		case m.born != born:
		case !m.Running:
			m.waiting = append(m.waiting, do)
		default:
			do()
		}
	})
}

// Frame brings something from one machine to another one on the link, perhaps.
func (w *Simulation) Frame(from, to *Machine, do func()) {
	if from != to && Connected(from, to) && w.Random.Float64() >= w.Loss {
		w.Of(to, w.UpTo(FrameTime), do)
	}
}

// Connected tells whether packets get from one machine to another one, should both work.
func Connected(a, b *Machine) bool { return a.Link && b.Link && a.Side == b.Side }

// Start has a machine begin, knowing nothing.
func (m *Machine) Start() { m.born, m.Running, m.waiting = m.born+1, true, nil }

// Stop has a machine stand still, for some time. Its clock may stand too. What it goes on with is
// done before then.
func (w *Simulation) Stop(m *Machine, back time.Duration, clockStands bool, then func()) {
	m.Running = false
	born := m.born
	w.In(back, func() {
		if m.born != born {
			return
		}
		m.Running = true
		if clockStands { // it cannot know
			m.Offset -= back
		}
		then()
		waiting := m.waiting
		m.waiting = nil
		for _, do := range waiting {
			do()
		}
	})
}

// Crash takes a machine's power away, for some time. Then it is to be started.
func (w *Simulation) Crash(m *Machine, back time.Duration, then func()) {
	m.Running = false
	m.born++
	born := m.born
	w.In(back, func() {
		if m.born == born {
			m.Offset = w.UpTo(time.Hour)
			then()
		}
	})
}

// Partition cuts the network into two sides, or makes it whole, and returns the side of each machine.
func (w *Simulation) Partition(machines []*Machine) (sides []int) {
	whole := w.Random.IntN(2) == 0
	for _, m := range machines {
		if m.Side = 0; !whole {
			m.Side = w.Random.IntN(2)
		}
		sides = append(sides, m.Side)
	}
	return sides
}

// Unpartitioned tells whether the network is not cut.
func Unpartitioned(machines []*Machine) bool {
	for _, m := range machines {
		if m.Side != machines[0].Side {
			return false
		}
	}
	return true
}
