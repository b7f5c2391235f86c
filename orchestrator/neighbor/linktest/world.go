// Package linktest simulates machines on one link with a virtual clock. Packets are delayed or
// lost. Machines stop for a time, crash and restart, their links go down, and the network is
// partitioned. The test defines the behavior of the machines and the invariants.
package linktest

import (
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/simtest"
)

// FrameTime is the longest delay of a packet on the link.
const FrameTime = 5 * time.Millisecond

// Simulation is one run of a simulation. New creates it.
type Simulation struct {
	*simtest.Simulation
	Loss float64 // the share of packets that are lost, between 0 and 1
}

// Machine is a machine on the link. The zero Machine has no power and no link.
type Machine struct {
	Running bool          // false if the machine is stopped or has no power
	Link    bool          // whether the link of the machine is up
	Side    int           // the side of a partitioned network; a packet stays on its side
	Offset  time.Duration // the clock of the machine minus the virtual clock
	// The number of starts and crashes. An event that was scheduled before the last start or crash
	// is dropped.
	born    int
	waiting []func() // the events that became due while the machine was stopped
}

// New returns a simulation without machines. If seed is divisible by 3, the link loses 5 % of its
// packets.
func New(t testing.TB, seed, stream uint64) *Simulation {
	w := &Simulation{Simulation: simtest.New(t, seed, stream)}
	if seed%3 == 0 {
		w.Loss = 0.05
	}
	return w
}

// Clock returns the time on a machine's clock.
func (w *Simulation) Clock(m *Machine) time.Time { return simtest.Begin().Add(w.Now + m.Offset) }

// Of schedules an event of a machine: a call of the function do after the delay d. If the machine
// crashes or restarts before this time, the event is dropped. If the machine is stopped at this
// time, the event runs when the machine continues.
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

// Frame sends a packet from one machine to another on the link, and calls the function do when the
// packet arrives. Packets are lost with the probability Loss.
func (w *Simulation) Frame(from, to *Machine, do func()) {
	if from != to && Connected(from, to) && w.Random.Float64() >= w.Loss {
		w.Of(to, w.UpTo(FrameTime), do)
	}
}

// Split partitions the network by the arguments of a command in a script: `a | b c` puts a on one
// side, and b and c on the other. find returns a machine by its name.
func Split(args []string, find func(name string) *Machine) {
	// A machine that args do not name stays on its side, which is 0 before the first split.
	side := 1
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

// Start starts a machine without state, and drops the events of its earlier run.
func (m *Machine) Start() { m.born, m.Running, m.waiting = m.born+1, true, nil }

// Stop stops a machine for the duration back. If clockStands is true, the clock of the machine
// stops, too. When the machine continues, Stop first calls the function then, and afterwards runs
// the events that became due while the machine was stopped.
func (w *Simulation) Stop(m *Machine, back time.Duration, clockStands bool, then func()) {
	m.Running = false
	born := m.born
	w.In(back, func() {
		if m.born != born {
			return
		}
		m.Running = true
		if clockStands { // the machine cannot detect a clock that stopped
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

// Crash powers a machine off for the duration back. After that, it calls the function then, which
// must start the machine.
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

// Partition splits the machines at random into two sides, or with probability 1/2 puts all of them
// on one side. It returns the side of each machine.
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
