package apivip

import (
	"net/netip"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/orchestrator/neighbor/linktest"
	"github.com/orlop-os/orlop/orchestrator/simtest"
)

// The simulation runs the code that decides (state.go) on control-plane machines of one network.
// The machines and the network fail and recover in all ways. A machine "answers" while it holds the
// virtual address.

// mode is the behavior of an API server.
type mode int

const (
	ready   mode = iota
	sick         // answers that it is not ready
	refuses      // does not exist
	hangs        // accepts connections and then sends nothing
	modes
)

const (
	answerTime = 50 * time.Millisecond // the longest time to an answer of a working API server

	// promised is the longest time without a machine that answers, while a machine is able to
	// answer.
	promised = 5 * time.Second
	// agreed is the time after which at most one of two machines that hear each other answers.
	// agreedLossy is the same time on a network with packet loss.
	agreed      = 3 * time.Second
	agreedLossy = 8 * time.Second
)

// machine is a control-plane machine.
type machine struct {
	linktest.Machine
	index   int
	address netip.Addr
	mac     neighbor.MAC
	mode    mode
	state   State
	servers map[netip.Addr]APIServer
	claims  []neighbor.MAC
	changed time.Duration // last stop, start, or change of its link or partition
	able    time.Duration // since when it can answer
}

func (m *machine) canAnswer() bool { return m.Running && m.Link && m.mode == ready }

// world is a run of the simulation.
type world struct {
	*linktest.Simulation
	machines []*machine
	bare     []*linktest.Machine // the embedded values of machines
	list     []netip.Addr
	troubled time.Duration // until then, machines may not have heard each other
	changed  time.Duration // last change
	moves    int
	judged   int // number of checks in which a machine had to answer
}

// start starts a machine without state.
func (w *world) start(m *machine) {
	m.Start()
	m.state, m.servers, m.claims = State{}, map[netip.Addr]APIServer{}, nil
	w.Of(&m.Machine, w.UpTo(neighbor.StepInterval), func() { w.step(m) })
	for _, other := range w.machines {
		w.Of(&m.Machine, w.UpTo(probeInterval), func() { w.ask(m, other) })
	}
}

// ask simulates a probe of the API server of other by m, repeatedly.
func (w *world) ask(m, other *machine) {
	tell := func(problem string, late bool) {
		s := m.servers[other.address].Answered(problem, late)
		m.servers[other.address] = s
		w.Of(&m.Machine, s.next(m == other), func() { w.ask(m, other) })
	}
	if !other.Running || m != other && !linktest.Connected(&m.Machine, &other.Machine) || other.mode == hangs {
		w.Of(&m.Machine, timeout, func() { tell("silent", true) })
		return
	}
	w.Of(&m.Machine, w.UpTo(answerTime), func() {
		switch other.mode {
		case sick, refuses:
			tell("not ready", false)
		default:
			tell("", false)
		}
	})
}

// step simulates the component, repeatedly.
func (w *world) step(m *machine) {
	before, since, stepped := m.state.Active, m.state.Since, m.state.lastStep
	able := m.Link && m.servers[m.address].Ready
	next, todo := m.state.Step(Observation{
		Now: w.Clock(&m.Machine), Eligible: able, Last: m.Link && !anyReady(w.list, m.servers), Most: mostReady(w.list, m.servers), Ahead: ahead(w.list, m.address, m.servers), Own: m.mac, Claims: m.claims,
	})
	m.state, m.claims = next, nil
	if next.Active != before {
		w.moves++
		w.Logf("%d answers: %t", m.index, next.Active)
		// two machines may start at the same time
		established := w.Clock(&m.Machine).Sub(since) > agreedLossy
		slept := m.state.lastStep.Sub(stepped) >= silence // others may have taken over
		if before && able && established && !slept && w.Now-w.troubled > agreedLossy {
			w.Fail("the machine stopped answering without a reason: all machines have heard each other since %v", w.troubled)
		}
	}
	for _, other := range w.machines {
		if todo.Announce {
			w.Frame(&m.Machine, &other.Machine, func() { other.claims = append(other.claims, m.mac) })
		}
		if todo.Probe {
			w.Frame(&m.Machine, &other.Machine, func() {
				if other.state.Active {
					w.Frame(&other.Machine, &m.Machine, func() { m.claims = append(m.claims, other.mac) })
				}
			})
		}
	}
	w.Of(&m.Machine, neighbor.StepInterval, func() { w.step(m) })
}

// disturb makes a random change of a machine or of the network, repeatedly.
func (w *world) disturb() {
	m := w.machines[w.Random.IntN(len(w.machines))]
	could := map[*machine]bool{}
	for _, one := range w.machines {
		could[one] = one.canAnswer()
	}
	w.changed = w.Now
	switch what := w.Random.IntN(6); {
	case what <= 1:
		m.mode = ready
		if w.Random.IntN(2) == 0 {
			m.mode = mode(w.Random.IntN(int(modes)))
		}
		w.Logf("%d: API server %d", m.index, m.mode)
	case what == 2 && m.Running:
		m.changed, w.troubled = w.Now, w.Now
		stands, back := w.Random.IntN(2) == 0, w.UpTo(20*time.Second)
		w.Logf("%d: is stopped for %v, its clock stands: %t", m.index, back, stands)
		w.Stop(&m.Machine, back, stands, func() {
			w.Logf("%d: continues", m.index)
			m.changed, w.changed, m.able = w.Now, w.Now, w.Now
			if stands { // the machine may take the address again
				w.troubled = max(w.troubled, w.Now)
			}
		})
	case what == 3:
		m.changed, m.state = w.Now, State{}
		back := w.UpTo(20 * time.Second)
		w.Logf("%d: dies for %v", m.index, back)
		w.Crash(&m.Machine, back, func() {
			w.Logf("%d: starts", m.index)
			m.changed, w.changed, m.able = w.Now, w.Now, w.Now
			w.start(m)
		})
	case what == 4:
		m.Link = !m.Link || w.Random.IntN(2) == 0
		m.changed = w.Now
		w.Logf("%d: link: %t", m.index, m.Link)
	case what == 5:
		for _, one := range w.machines {
			one.changed = w.Now
		}
		sides := w.Partition(w.bare)
		w.troubled = w.Now
		w.Logf("sides: %v", sides)
	}
	for _, one := range w.machines {
		if one.canAnswer() && !could[one] {
			one.able = w.Now
		}
	}
	// In a partitioned network the machines of other partitions may also answer.
	if !linktest.Unpartitioned(w.bare) {
		w.troubled = time.Hour
	} else if w.troubled == time.Hour {
		w.troubled = w.Now
	}
	w.In(w.UpTo(20*time.Second), w.disturb)
}

// judge checks the guarantees, repeatedly.
func (w *world) judge() {
	within := agreed
	if w.Loss > 0 {
		within = agreedLossy
	}
	for i, a := range w.machines {
		for _, b := range w.machines[:i] {
			both := a.Running && b.Running && a.state.Active && b.state.Active && linktest.Connected(&a.Machine, &b.Machine)
			if both && w.Now-max(a.changed, b.changed, w.settledSince(a, b)) > within {
				w.Fail("both %d and %d answer, although they hear each other", b.index, a.index)
			}
		}
	}
	if w.Now-w.changed > promised {
		for _, a := range w.machines {
			if !a.canAnswer() || w.Now-a.able <= promised {
				continue
			}
			served := false
			for _, b := range w.machines {
				served = served || b.canAnswer() && linktest.Connected(&a.Machine, &b.Machine) && b.state.Active
			}
			w.judged++
			if !served {
				w.Fail("no machine answers, although machine %d has been able to since %v", a.index, a.able)
			}
		}
	}
	w.In(100*time.Millisecond, w.judge)
}

// settledSince returns since when both machines have answered.
func (w *world) settledSince(a, b *machine) time.Duration {
	return max(a.state.Since.Sub(begin)-a.Offset, b.state.Since.Sub(begin)-b.Offset)
}

var begin = simtest.Begin()

// TestSimulation checks the guaranteed times for all failures of machines and network: a machine
// answers, only one machine answers where the machines hear each other, and the same machine
// answers as long as it can.
func TestSimulation(t *testing.T) {
	const worlds = 2000
	var moves, judged int
	for seed := range uint64(worlds) {
		w := &world{Simulation: linktest.New(t, seed, 34)}
		for i := range 1 + w.Random.IntN(5) {
			m := &machine{index: i, address: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)})}
			m.Link, m.Offset = true, w.UpTo(time.Hour)
			for b := range m.mac {
				m.mac[b] = byte(w.Random.IntN(256))
			}
			w.machines, w.bare, w.list = append(w.machines, m), append(w.bare, &m.Machine), append(w.list, m.address)
		}
		for _, m := range w.machines {
			w.start(m)
		}
		w.In(w.UpTo(20*time.Second), w.disturb)
		w.judge()
		w.Run(3 * time.Minute)
		moves, judged = moves+w.moves, judged+w.judged
	}
	t.Logf("%d runs: %d times a machine began or ceased to answer, %d checks in which a machine had to answer", worlds, moves, judged)
	if moves < 5*worlds || judged < 100*worlds {
		t.Error("the runs contain too few of these cases")
	}
}
