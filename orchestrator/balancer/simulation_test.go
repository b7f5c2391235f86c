package balancer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/simtest"
)

// The simulation runs the code that decides (state.go) with servers that fail and recover in all
// ways, and clients that connect all the time.

// mode is the behavior of a server.
type mode int

const (
	works   mode = iota
	sick         // answers that it is not ready
	refuses      // rejects connections
	silent       // sends no packets
	hangs        // accepts connections and then sends nothing
	modes
)

const (
	// answerTime is the longest time to an answer of a working server.
	answerTime = 100 * time.Millisecond
	// noticed is the time after which a failed server in use gets no more connections.
	noticed = probeInterval + timeout + 2*answerTime
	// settled is the same if the next server has silently failed before.
	settled = noticed + timeout
	// closed is the time after which the connections of a failed server are closed.
	closed = noticed + retryInterval + timeout
)

// simulated is a server.
type simulated struct {
	mode  mode
	since time.Duration // start of the mode
	well  time.Duration // since when it works, or does not work
	lost  bool          // its last answer was lost
}

// opened is a connection.
type opened struct {
	server string
	at     time.Duration
}

// world is a run of the simulation.
type world struct {
	*simtest.Simulation
	// whether single answers of working servers are lost; this must not affect open connections
	lossy   bool
	names   []string // of the servers, the preferred server of the node first
	servers map[string]*simulated
	state   State
	open    []opened
	steps   int // number of calls of step
	served  int // connections
	moved   int // connections that were closed
	judged  int // connections that should have reached a working server
	first   int // of these, to a working preferred server
	away    int // of these, while the preferred server had failed
}

func (w *world) clock() time.Time { return simtest.Begin().Add(w.Now) }

// The method in schedules an event after a delay, and a step after the event.
func (w *world) in(d time.Duration, do func()) {
	w.In(d, func() {
		do()
		w.step()
	})
}

// turn changes the mode of a server, repeatedly.
func (w *world) turn(name string) {
	s := w.servers[name]
	next := works
	if s.mode == works || w.Random.IntN(4) == 0 {
		next = mode(w.Random.IntN(int(modes)))
	}
	if (next == works) != (s.mode == works) {
		s.well = w.Now
	}
	s.mode, s.since = next, w.Now
	w.Logf("%s: mode %d", name, next)
	w.in(w.UpTo(40*time.Second), func() { w.turn(name) })
}

// ask simulates a probe of a server.
func (w *world) ask(name string) {
	w.in(w.UpTo(answerTime), func() {
		s := w.servers[name]
		tell := func(a ProbeResult) {
			w.Logf("%s answers: %+v", name, a)
			w.state.ProbeDone(name, a, w.clock())
		}
		switch s.mode {
		case works:
			if s.lost = w.lossy && !s.lost && w.Random.IntN(8) == 0; s.lost {
				w.in(timeout-answerTime, func() { tell(ProbeResult{Problem: "lost"}) })
				return
			}
			tell(ProbeResult{Reachable: true})
		case sick:
			tell(ProbeResult{Reachable: true, Problem: "sick"})
		case refuses:
			tell(ProbeResult{Problem: "refuses"})
		default:
			w.in(timeout-answerTime, func() { tell(ProbeResult{Problem: "silent"}) })
		}
	})
}

// connect simulates serve for a client that came at the time came. order lists the servers that
// were not tried yet.
func (w *world) connect(came time.Duration, order []string) {
	if len(order) == 0 {
		w.Logf("a client of %v gets nothing", came)
		w.judge(came, "")
		return
	}
	name := order[0]
	failed := func() {
		w.Logf("%s takes no connection", name)
		w.state.ConnectFailed(name, "failed")
		w.connect(came, order[1:])
	}
	w.in(w.UpTo(answerTime), func() {
		switch w.servers[name].mode {
		case refuses:
			failed()
		case silent:
			w.in(connectTimeout-answerTime, failed)
		default:
			w.Logf("a client of %v gets %s", came, name)
			w.judge(came, name)
			w.state.ConnOpened(name)
			c := opened{name, w.Now}
			w.open = append(w.open, c)
			w.served++
			w.in(w.UpTo(time.Minute), func() { w.end(c) })
		}
	})
}

// end ends a connection that was not closed before.
func (w *world) end(c opened) {
	if i := slices.Index(w.open, c); i >= 0 {
		w.open = slices.Delete(w.open, i, i+1)
		w.state.ConnClosed(c.server)
	}
}

// judge checks which server a client got. came is the time at which the client came; got is empty
// if the client got no server. If no server has changed for long enough, the client must get a
// working server, if there is one. If the preferred server of the node, such as a control-plane
// machine's own, has worked for long enough, the client must get that server.
func (w *world) judge(came time.Duration, got string) {
	if w.lossy {
		return
	}
	quiet, calm, any := true, len(w.servers) > 1, false
	for _, name := range w.names {
		if name == got {
			break
		}
		if s := w.servers[name]; s.mode == works && came-s.well >= noticed {
			w.Fail("a client got another server, although %s is preferred and has worked since %v", name, s.well)
		}
	}
	for name, s := range w.servers {
		quiet = quiet && came-s.since >= settled
		calm = calm && (name == got || s.mode == works && came-s.well >= standbyInterval+settled)
		any = any || s.mode == works
	}
	switch {
	case quiet && any:
		w.judged++
		if w.servers[w.names[0]].mode == works {
			w.first++
		} else {
			w.away++
		}
		if got == "" || w.servers[got].mode != works {
			w.Fail("a client got no working server, although a server works, and no server has changed for %v", settled)
		}
	case calm && got != "" && w.servers[got].mode != works && came-w.servers[got].well >= noticed:
		w.Fail("a client got a server that has not worked since %v, although all other servers work", w.servers[got].well)
	}
}

// step performs the actions of the state.
func (w *world) step() {
	todo := w.state.Next(w.clock())
	for _, name := range todo.Probe {
		w.ask(name)
	}
	for _, name := range todo.Close {
		if s := w.servers[name]; s.mode == works && w.Now-s.well >= noticed {
			w.Fail("%s loses its connections although it has worked since %v", name, s.well)
		}
		for _, c := range slices.Clone(w.open) {
			if c.server == name {
				w.moved++
				w.end(c)
			}
		}
		w.Logf("%s: connections are closed", name)
	}
	if w.steps++; !todo.Until.IsZero() {
		step := w.steps
		w.In(todo.Until.Sub(w.clock()), func() {
			if step == w.steps { // no other step has replaced it
				w.step()
			}
		})
	}
	for _, c := range w.open {
		s := w.servers[c.server]
		if w.lossy || s.mode == works || w.Now-s.well < closed || w.Now-c.at < closed {
			continue
		}
		for name, other := range w.servers {
			if other.mode == works && w.Now-other.well >= closed {
				w.Fail("a connection to %s is open since %v, but the server has not worked since %v; %s has worked since %v", c.server, c.at, s.well, name, other.well)
			}
		}
	}
}

// connectClients makes clients connect, repeatedly.
func (w *world) connectClients() {
	w.connect(w.Now, w.state.Order())
	w.in(w.UpTo(2*time.Second), w.connectClients)
}

// TestSimulation checks the guaranteed times for all failures of servers: a client gets a working
// server, and the preferred server of its node if that server works.
func TestSimulation(t *testing.T) {
	const worlds = 2000
	var served, moved, judged, first, away int
	for seed := range uint64(worlds) {
		w := &world{Simulation: simtest.New(t, seed, 1), lossy: seed%4 == 0, servers: map[string]*simulated{}}
		for i := range 1 + w.Random.IntN(5) {
			name := fmt.Sprintf("s%d", i)
			w.names = append(w.names, name)
			w.servers[name] = &simulated{mode: mode(w.Random.IntN(int(modes)))}
			w.in(w.UpTo(40*time.Second), func() { w.turn(name) })
		}
		w.state = NewState(w.names, "")
		w.connectClients()
		w.step()
		w.Run(2 * time.Minute)
		served, moved, judged, first, away = served+w.served, moved+w.moved, judged+w.judged, first+w.first, away+w.away
	}
	t.Logf("%d runs: %d connections, %d of them closed for a better server, %d judged: %d to the preferred server, %d while that server had failed",
		worlds, served, moved, judged, first, away)
	if moved == 0 || judged < served/10 || first < judged/10 || away < judged/10 {
		t.Error("the runs contain too few of these cases")
	}
}
