// Package linktest simulates machines on one link with a virtual clock: packets are delayed or
// lost, machines stand still, crash and restart, their links go down, and the network is
// partitioned. The test defines the behavior of the machines and the invariants.
package linktest

import (
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/simtest"
)

// FrameTime is the longest delay of a packet on the link.
const FrameTime = 5 * time.Millisecond

// Simulation is one run. Make it with New.
type Simulation struct {
	*simtest.Simulation
	Loss float64 // of packets, up to 1
}

// Machine is a machine on the link. The zero Machine has no power and no link.
type Machine struct {
	Running bool          // false: it stands still or has no power
	Link    bool          // it is up
	Side    int           // of a partitioned network; machines of one side hear each other
	Offset  time.Duration // of its clock
	// the number of starts and crashes; pending events of an earlier run are dropped
	born    int
	waiting []func() // the pending events of a machine that stands still
}

// New returns a simulation without machines; every third seed loses packets.
func New(t testing.TB, seed, stream uint64) *Simulation {
	w := &Simulation{Simulation: simtest.New(t, seed, stream)}
	if seed%3 == 0 {
		w.Loss = 0.05
	}
	return w
}

// Clock returns the time on a machine's clock.
func (w *Simulation) Clock(m *Machine) time.Time { return simtest.Begin().Add(w.Now + m.Offset) }

// Of schedules an event of a machine after a delay, for the current run of the machine. If the
// machine stands still, the event waits until it continues.
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

// Frame delivers a packet from one machine to another on the link, unless it is lost.
func (w *Simulation) Frame(from, to *Machine, do func()) {
	if from != to && Connected(from, to) && w.Random.Float64() >= w.Loss {
		w.Of(to, w.UpTo(FrameTime), do)
	}
}

// Split partitions the network by the arguments of a script's command, such as `a | b c`. find
// returns a machine by its name.
func Split(args []string, find func(name string) *Machine) {
	side := 1 // a machine that is not named stays on its side, 0 before the first split
	for _, name := range args {
		if name == "|" {
			side++
			continue
		}
		find(name).Side = side
	}
}

// Connected reports whether the link carries packets between two machines.
func Connected(a, b *Machine) bool { return a.Link && b.Link && a.Side == b.Side }

// Start starts a machine without state.
func (m *Machine) Start() { m.born, m.Running, m.waiting = m.born+1, true, nil }

// Stop lets a machine stand still for some time. Its clock may stand still too. It calls then
// before the pending events.
func (w *Simulation) Stop(m *Machine, back time.Duration, clockStands bool, then func()) {
	m.Running = false
	born := m.born
	w.In(back, func() {
		if m.born != born {
			return
		}
		m.Running = true
		if clockStands { // it cannot detect that
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

// Crash powers a machine off for some time. then has to start it.
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

// Partition splits the network into two sides, or heals it, and returns the side of each machine.
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

// Unpartitioned reports whether all machines are on the same side.
func Unpartitioned(machines []*Machine) bool {
	for _, m := range machines {
		if m.Side != machines[0].Side {
			return false
		}
	}
	return true
}
