package virtualaddress

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbour"
)

// Control-plane machines on one network that begin and cease to work in each way that there is, and the code that decides.

// mode is what an API server does.
type mode int

const (
	ready   mode = iota
	sick         // answers that it is not ready
	refuses      // there is none
	hangs        // takes connections, and then nothing comes back
	modes
)

const (
	frameTime  = 5 * time.Millisecond  // the most that a packet takes on the link
	answerTime = 50 * time.Millisecond // the most that an API server takes to answer when it does

	// promised is when there is a machine that answers, once there is one that can.
	promised = 5 * time.Second
	// agreed is when of two machines that hear each other at most one answers; agreedLossy is the same where packets are lost.
	agreed      = 3 * time.Second
	agreedLossy = 8 * time.Second
)

// machine is one of the control plane.
type machine struct {
	index   int
	address netip.Addr
	mac     neighbour.MAC
	mode    mode
	link    bool          // it is up
	side    int           // of a network that is cut; those of one side hear each other
	running bool          // else it is stopped, or has no power
	offset  time.Duration // of its clock
	born    int           // how often it was started: what is under way for the one before does not count
	wait    []func()      // what a stopped machine does when it goes on
	state   State
	servers map[netip.Addr]Server
	claims  []neighbour.MAC
	changed time.Duration // it was stopped, went on, or its link or side became another one
	able    time.Duration // it can answer since then
}

func (m *machine) canAnswer() bool { return m.running && m.link && m.mode == ready }

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

// world is one run.
type world struct {
	t        *testing.T
	random   *rand.Rand
	loss     float64
	now      time.Duration
	events   events
	order    int
	machines []*machine
	list     []netip.Addr
	troubled time.Duration // machines may not have heard each other until then
	changed  time.Duration // anything was
	log      []string
	moves    int
	judged   int // moments at which somebody had to answer
}

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8.3fs ", w.now.Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.say(format, args...)
	w.t.Fatalf("%s", strings.Join(w.log[max(0, len(w.log)-80):], "\n"))
}

func (w *world) in(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.events, event{w.now + d, w.order, do})
}

func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.random.Int64N(int64(d)) + 1)
}

// of does something for a machine after a time, if it is still the same: when it goes on, if it is stopped.
func (w *world) of(m *machine, d time.Duration, do func()) {
	born := m.born
	w.in(d, func() {
		switch {
		case m.born != born:
		case !m.running:
			m.wait = append(m.wait, do)
		default:
			do()
		}
	})
}

func (w *world) hear(a, b *machine) bool { return a.link && b.link && a.side == b.side }

// frame brings something to a machine on the link, perhaps.
func (w *world) frame(from, to *machine, do func()) {
	if from != to && w.hear(from, to) && w.random.Float64() >= w.loss {
		w.of(to, w.upTo(frameTime), do)
	}
}

// start has a machine begin, knowing nothing.
func (w *world) start(m *machine) {
	m.born++
	m.running, m.state, m.servers, m.claims, m.wait = true, State{}, map[netip.Addr]Server{}, nil, nil
	w.of(m, w.upTo(stepping), func() { w.step(m) })
	for _, other := range w.machines {
		w.of(m, w.upTo(pause), func() { w.ask(m, other) })
	}
}

// ask is what the prober does.
func (w *world) ask(m, other *machine) {
	tell := func(problem string, late bool) {
		s := m.servers[other.address].Answered(problem, late)
		m.servers[other.address] = s
		w.of(m, s.next(m == other), func() { w.ask(m, other) })
	}
	if !other.running || m != other && !w.hear(m, other) || other.mode == hangs {
		w.of(m, patience, func() { tell("silent", true) })
		return
	}
	w.of(m, w.upTo(answerTime), func() {
		switch other.mode {
		case sick, refuses:
			tell("not ready", false)
		default:
			tell("", false)
		}
	})
}

// step is what the component does, again and again.
func (w *world) step(m *machine) {
	before, since, stepped := m.state.Answering, m.state.Since, m.state.stepped
	able := m.link && m.servers[m.address].Ready
	next, todo := m.state.Step(View{
		Now: begin.Add(w.now + m.offset), Able: able, Last: m.link && !anyReady(w.list, m.servers), Ahead: ahead(w.list, m.address, m.servers), Own: m.mac, Claims: m.claims,
	})
	m.state, m.claims = next, nil
	if next.Answering != before {
		w.moves++
		w.say("%d answers: %t", m.index, next.Answering)
		established := begin.Add(w.now+m.offset).Sub(since) > agreedLossy // two may begin at the same time
		slept := m.state.stepped.Sub(stepped) >= silence                  // others may have taken over
		if before && able && established && !slept && w.now-w.troubled > agreedLossy {
			w.fail("that is wrong: it could have gone on, and all have heard each other since %v", w.troubled)
		}
	}
	for _, other := range w.machines {
		if todo.Announce {
			w.frame(m, other, func() { other.claims = append(other.claims, m.mac) })
		}
		if todo.Probe {
			w.frame(m, other, func() {
				if other.state.Answering {
					w.frame(other, m, func() { m.claims = append(m.claims, other.mac) })
				}
			})
		}
	}
	w.of(m, stepping, func() { w.step(m) })
}

// disturb changes something, and so on.
func (w *world) disturb() {
	m := w.machines[w.random.IntN(len(w.machines))]
	could := map[*machine]bool{}
	for _, one := range w.machines {
		could[one] = one.canAnswer()
	}
	w.changed = w.now
	switch what := w.random.IntN(6); {
	case what <= 1:
		m.mode = ready
		if w.random.IntN(2) == 0 {
			m.mode = mode(w.random.IntN(int(modes)))
		}
		w.say("%d: API server %d", m.index, m.mode)
	case what == 2 && m.running:
		m.running, m.changed, w.troubled = false, w.now, w.now
		stands := w.random.IntN(2) == 0
		back := w.upTo(20 * time.Second)
		w.say("%d: is stopped for %v, its clock stands: %t", m.index, back, stands)
		born := m.born
		w.in(back, func() {
			if m.born != born {
				return
			}
			w.say("%d: goes on", m.index)
			m.running, m.changed, w.changed, m.able = true, w.now, w.now, w.now
			if stands { // it cannot know, and may take the address back
				m.offset -= back
				w.troubled = max(w.troubled, w.now)
			}
			wait := m.wait
			m.wait = nil
			for _, do := range wait {
				do()
			}
		})
	case what == 3:
		m.running, m.changed = false, w.now
		m.born++
		m.state = State{}
		back := w.upTo(20 * time.Second)
		w.say("%d: dies for %v", m.index, back)
		born := m.born
		w.in(back, func() {
			if m.born != born {
				return
			}
			w.say("%d: starts", m.index)
			m.offset, m.changed, w.changed, m.able = w.upTo(time.Hour), w.now, w.now, w.now
			w.start(m)
		})
	case what == 4:
		m.link = !m.link || w.random.IntN(2) == 0
		m.changed = w.now
		w.say("%d: link: %t", m.index, m.link)
	case what == 5:
		whole := w.random.IntN(2) == 0
		var sides []int
		for _, one := range w.machines {
			one.side, one.changed = 0, w.now
			if !whole {
				one.side = w.random.IntN(2)
			}
			sides = append(sides, one.side)
		}
		w.troubled = w.now
		w.say("sides: %v", sides)
	}
	for _, one := range w.machines {
		if one.canAnswer() && !could[one] {
			one.able = w.now
		}
	}
	// Where the network is cut, nobody can be blamed for what the others do.
	cut := false
	for _, one := range w.machines {
		cut = cut || one.side != w.machines[0].side
	}
	if cut {
		w.troubled = time.Hour
	} else if w.troubled == time.Hour {
		w.troubled = w.now
	}
	w.in(w.upTo(20*time.Second), w.disturb)
}

// judge looks at the world, again and again.
func (w *world) judge() {
	within := agreed
	if w.loss > 0 {
		within = agreedLossy
	}
	for i, a := range w.machines {
		for _, b := range w.machines[:i] {
			both := a.running && b.running && a.state.Answering && b.state.Answering && w.hear(a, b)
			if both && w.now-max(a.changed, b.changed, w.settledSince(a, b)) > within {
				w.fail("that is wrong: %d and %d answer, and hear each other", b.index, a.index)
			}
		}
	}
	if w.now-w.changed > promised {
		for _, a := range w.machines {
			if !a.canAnswer() || w.now-a.able <= promised {
				continue
			}
			served := false
			for _, b := range w.machines {
				served = served || b.canAnswer() && w.hear(a, b) && b.state.Answering
			}
			w.judged++
			if !served {
				w.fail("that is wrong: nobody answers who can, and %d could since %v", a.index, a.able)
			}
		}
	}
	w.in(100*time.Millisecond, w.judge)
}

// settledSince is when two machines both answered at first.
func (w *world) settledSince(a, b *machine) time.Duration {
	return max(a.state.Since.Sub(begin)-a.offset, b.state.Since.Sub(begin)-b.offset)
}

var begin = time.Unix(1_000_000, 0)

// TestSimulation: whatever happens to machines and their network, within the times that the package promises one of them answers, one
// alone where they hear each other, and the same one as long as it can.
func TestSimulation(t *testing.T) {
	const worlds = 2000
	var moves, judged int
	for seed := range uint64(worlds) {
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 34))}
		if seed%3 == 0 {
			w.loss = 0.05
		}
		w.say("seed %d, loss %v", seed, w.loss)
		for i := range 1 + w.random.IntN(5) {
			m := &machine{index: i, address: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), link: true, offset: w.upTo(time.Hour)}
			for b := range m.mac {
				m.mac[b] = byte(w.random.IntN(256))
			}
			w.machines, w.list = append(w.machines, m), append(w.list, m.address)
		}
		for _, m := range w.machines {
			w.start(m)
		}
		w.in(w.upTo(20*time.Second), w.disturb)
		w.judge()
		for w.now < 3*time.Minute {
			next := heap.Pop(&w.events).(event)
			w.now = next.at
			next.do()
		}
		moves, judged = moves+w.moves, judged+w.judged
	}
	t.Logf("%d worlds: %d times a machine began to answer or ceased to, %d moments at which one had to", worlds, moves, judged)
	if moves < 5*worlds || judged < 100*worlds {
		t.Error("the worlds show too little")
	}
}
