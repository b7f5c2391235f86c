package l2announcer

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/orchestrator/neighbor/linktest"
)

// This file simulates nodes on one link, with the decisions of this package. The nodes crash, stand
// still, restart, and are cut off from each other and from the API server.

const (
	// The constant replaced is the longest time from a change until exactly one node answers
	// for an address. With packet loss, a node may consider a peer silent or heard by mistake
	// for this time.
	replaced = 3 * time.Second
	// If settled has passed since the last change, no address may move. This holds for links
	// without packet loss.
	settled = 5 * time.Second
	// untangled is used in place of replaced if nodes have different data, or if a node has yielded
	// an address. In both cases a node is or was cut off from the API server. The time is longer,
	// because a node detects late that it is cut off.
	untangled = found + 2*probeInterval
	// The constant lost is the age of a Lease at which the API server considers the node lost. The
	// constant found is the age at which the node itself detects that it is cut off.
	lost, found = 50 * time.Second, 40 * time.Second
	// forgotten is the time without an announcement after which all nodes consider a node silent,
	// even if some of them stood still in this time.
	forgotten = maxMute + 45*time.Second
)

// facts are the objects of the API server. A change replaces the whole value, so nodes can share
// it.
type facts struct {
	version  int
	nodes    []Node
	services []Service
}

// simulated is a node of the simulation.
type simulated struct {
	linktest.Machine
	name    string
	address netip.Addr
	mac     neighbor.MAC
	works   bool          // the announcer runs; without it, only the kernel runs
	run     int           // the number of starts of the announcer
	spoke   time.Duration // time of its last announcement
	online  bool          // the node reaches the API server
	renewed time.Duration // time of the last renewal of its Lease
	stale   bool          // the node considers itself cut off from the API server
	known   facts         // the objects that the node has read; nodes is nil before the first list
	state   state
	heard   []neighbor.SeenAddress
	answers []netip.Addr
}

func (m *simulated) announces() bool { return m.Running && m.works && m.known.nodes != nil }

// yields reports whether the node has yielded addresses. Only a node that is cut off yields.
func (m *simulated) yields() bool { return m.announces() && len(m.answers) < len(m.state.claims) }

// simulation is a run of the simulated nodes.
type simulation struct {
	*linktest.Simulation
	machines  []*simulated
	bare      []*linktest.Machine // the linktest.Machine of each node in machines
	facts     facts
	away      bool          // the API server is down
	changed   time.Duration // time of the last change
	wrong     map[string]time.Duration
	moves     int
	judged    int
	takeovers int
	// mute counts the checks (judge) of a running machine that had made no announcement for at
	// least the time forgotten.
	mute int
}

func (w *simulation) disturbed(format string, args ...any) {
	w.changed = w.Now
	w.Logf(format, args...)
}

// tell lets each node that reaches the API server read its objects, after a random delay.
func (w *simulation) tell() {
	for _, m := range w.machines {
		w.Of(&m.Machine, w.UpTo(300*time.Millisecond), func() { w.learn(m) })
	}
}

// learn lets a node read the objects of the API server and renew its Lease, if it can.
func (w *simulation) learn(m *simulated) {
	if !m.works || !m.online || w.away {
		return
	}
	if m.known.nodes == nil || m.known.version != w.facts.version {
		w.changed = w.Now
		m.known, m.state.candidates = w.facts, nil
	}
	m.renewed, m.stale = w.Now, false
}

// change copies the objects of the API server, lets edit change the copy, replaces the objects by
// it, and sends them to the nodes.
func (w *simulation) change(edit func(*facts)) {
	next := facts{w.facts.version + 1, slices.Clone(w.facts.nodes), slices.Clone(w.facts.services)}
	edit(&next)
	w.facts = next
	w.tell()
}

// lease renews the Lease of each node, and marks Nodes as ready or not ready by the age of their
// Leases. While the API server is down, lease marks no node as lost. The end of an outage counts as
// a renewal of all Leases (disturb). lease schedules its next call.
func (w *simulation) lease() {
	for i, m := range w.machines {
		renews := m.Running && m.online && !w.away
		switch {
		case renews:
			m.renewed = w.Now
			w.learn(m)
		case m.Running && w.Now-m.renewed > found && !m.stale:
			m.stale = true
			w.disturbed("%s considers itself cut off", m.name)
		}
		ready := w.facts.nodes[i].Ready
		if is := renews || ready && (w.away || w.Now-m.renewed <= lost); is != ready {
			w.disturbed("%s is ready: %t", m.name, is)
			w.change(func(f *facts) { f.nodes[i].Ready = is })
		}
	}
	w.In(500*time.Millisecond, w.lease)
}

// start starts the announcer of a node without state. The announcer then steps until it is stopped
// or started again.
func (w *simulation) start(m *simulated) {
	m.run++
	m.works, m.state, m.heard, m.answers, m.known, m.stale = true, state{}, nil, nil, facts{}, false
	run := m.run
	var step func()
	step = func() {
		if m.run == run && m.works {
			w.step(m)
			w.Of(&m.Machine, neighbor.StepInterval, step)
		}
	}
	w.Of(&m.Machine, w.UpTo(neighbor.StepInterval), func() { w.learn(m); step() })
}

// step runs a step of a node, delivers its packets, and fails the test if the node answers for an
// address that it must not have.
func (w *simulation) step(m *simulated) {
	if m.known.nodes == nil {
		m.heard = nil // a node does not listen before its first list
		return
	}
	yielded := m.yields()
	var do actions
	m.state, do = m.state.step(observation{
		now: w.Clock(&m.Machine), self: m.name, nodes: m.known.nodes, services: m.known.services, heard: m.heard, noLink: !m.Link, cutOff: m.stale,
	})
	m.heard = nil
	answers := m.state.claims.answered()
	if !slices.Equal(answers, m.answers) {
		w.moves++
		w.Logf("%s answers for %v, silent: %v", m.name, answers, do.silent)
		if w.Loss == 0 && w.Now-w.changed > settled && w.agree(w.machines) && !yielded && !m.yields() {
			w.Fail("that is wrong: nothing has happened since %v", w.changed)
		}
	}
	m.answers = answers
	for _, a := range answers {
		if !w.eligible(m, m.known, a) {
			w.Fail("that is wrong: %s answers for %s", m.name, a)
		}
	}
	claim := func(a netip.Addr, announced bool) neighbor.SeenAddress {
		return neighbor.SeenAddress{Address: a, MAC: m.mac, Announced: announced}
	}
	for _, other := range w.machines {
		tell := func(sender, receiver *simulated, c neighbor.SeenAddress) {
			w.Frame(&sender.Machine, &receiver.Machine, func() {
				if receiver.works {
					receiver.heard = append(receiver.heard, c)
				}
			})
		}
		if do.announceSelf {
			tell(m, other, claim(m.address, true))
		}
		for _, a := range do.announce {
			tell(m, other, claim(a, true))
		}
		for _, a := range do.probe {
			w.Frame(&m.Machine, &other.Machine, func() {
				if other.works && slices.Contains(other.answers, a) {
					tell(other, m, neighbor.SeenAddress{Address: a, MAC: other.mac})
				}
			})
		}
		for _, c := range do.solicit {
			if c.MAC == other.mac { // the kernel of other answers
				w.Frame(&m.Machine, &other.Machine, func() { tell(other, m, neighbor.SeenAddress{Address: other.address, MAC: other.mac}) })
			}
		}
	}
}

// eligible reports whether, by the objects in known, node m may answer for address a.
func (w *simulation) eligible(m *simulated, known facts, a netip.Addr) bool {
	n := known.nodes[slices.IndexFunc(known.nodes, func(n Node) bool { return n.Name == m.name })]
	for _, s := range known.services {
		if slices.Contains(s.Addresses, a) {
			return n.Ready && !n.Excluded && (!s.Local || slices.Contains(s.Endpoints, m.name))
		}
	}
	return false
}

// agree reports whether all nodes with working announcers know the same version of the objects.
func (w *simulation) agree(machines []*simulated) bool {
	var first *simulated
	for _, m := range machines {
		switch {
		case !m.announces():
		case first == nil:
			first = m
		case first.known.version != m.known.version:
			return false
		}
	}
	return true
}

// disturb makes a random change to a node, the network or the objects. It schedules its next call.
func (w *simulation) disturb() {
	m := w.machines[w.Random.IntN(len(w.machines))]
	i := slices.Index(w.machines, m)
	back := w.UpTo(30 * time.Second)
	switch action := w.Random.IntN(10); {
	case action == 0 && m.Running:
		stands := w.Random.IntN(2) == 0
		w.disturbed("%s is stopped for %v, its clock stands: %t", m.name, back, stands)
		w.Stop(&m.Machine, back, stands, func() { w.disturbed("%s goes on", m.name) })
	case action <= 2:
		back *= 1 + time.Duration(w.Random.IntN(4))
		w.disturbed("%s dies for %v", m.name, back)
		w.takeovers++
		m.works = false
		w.Crash(&m.Machine, back, func() {
			w.disturbed("%s starts", m.name)
			m.Start()
			w.start(m)
		})
	case action == 3 && m.Running:
		w.disturbed("the announcer of %s ends for %v", m.name, back)
		m.works = false
		m.run++
		w.Of(&m.Machine, back, func() {
			w.disturbed("the announcer of %s starts", m.name)
			w.start(m)
		})
	case action == 4 && m.works:
		m.Link = !m.Link
		w.disturbed("%s: link: %t", m.name, m.Link)
		w.Of(&m.Machine, 1, func() { m.state.peers, m.state.claims = peerState{}, m.state.claims.reannounce() })
	case action == 5:
		w.disturbed("sides: %v", w.Partition(w.bare))
	case action == 6:
		w.away = !w.away
		if !w.away {
			for _, one := range w.machines { // no node could renew its Lease during the outage
				one.renewed = max(one.renewed, w.Now)
			}
		}
		w.disturbed("the API server is away: %t", w.away)
	case action == 7:
		m.online = !m.online
		w.disturbed("%s reaches the API server: %t", m.name, m.online)
	case action == 8 && !w.away:
		w.change(func(f *facts) { f.nodes[i].Excluded = !f.nodes[i].Excluded })
		w.disturbed("%s is excluded: %t", m.name, w.facts.nodes[i].Excluded)
	case action == 9 && !w.away:
		w.change(func(f *facts) {
			s := &f.services[w.Random.IntN(len(f.services))]
			s.Local, s.Endpoints = w.Random.IntN(3) > 0, nil
			for _, one := range w.machines {
				if w.Random.IntN(2) == 0 {
					s.Endpoints = append(s.Endpoints, one.name)
				}
			}
			w.disturbed("%v is at %v", s.Addresses, s.Endpoints)
		})
	}
	w.In(w.UpTo(40*time.Second), w.disturb)
}

// judge checks which nodes answer for each address. It fails the test if a wrong state lasts longer
// than the nodes may need to detect it. It schedules its next call.
func (w *simulation) judge() {
	wrong := map[string]time.Duration{}
	for _, m := range w.machines {
		mute := w.Now - m.spoke
		switch {
		case m.announces():
			m.spoke = w.Now
		// Between maxMute and forgotten, the other nodes begin to consider m silent, each by its
		// own clock.
		case m.Running && mute >= maxMute && mute < forgotten:
			w.changed = w.Now
		case m.Running && mute >= forgotten:
			w.mute++
		}
	}
	find := func(limit time.Duration, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		since, before := w.wrong[text]
		if !before || since < w.changed {
			since = w.Now
			if since-w.changed < 200*time.Millisecond { // the last change caused the wrong state
				since = w.changed
			}
		}
		wrong[text] = since
		if w.Now-since > limit {
			w.Fail("that is wrong: %s", text)
		}
	}
	for side := range 2 {
		var here []*simulated
		for _, m := range w.machines {
			if m.Link && m.Side == side {
				here = append(here, m)
			}
		}
		limit, agree := replaced, w.agree(here)
		for _, m := range here {
			if !agree || m.yields() {
				limit = untangled
			}
		}
		for _, s := range w.facts.services {
			a := s.Addresses[0]
			var answer, could []string
			down, taken := false, limit
			for _, m := range here {
				if m.Running && !m.announces() {
					down = down || w.Now-m.spoke < forgotten
					// Until a node has listened for TakeOverAfter, it relies on the API server and
					// does not detect that m is silent.
					taken = limit + neighbor.TakeOverAfter
				}
				if m.announces() && slices.Contains(m.answers, a) {
					answer = append(answer, m.name)
				}
				if m.announces() && w.eligible(m, m.known, a) {
					could = append(could, m.name)
				}
			}
			if len(answer) > 1 {
				find(limit, "%v answer for %s", answer, a)
			}
			// While an announcer restarts, its addresses have no owner, because its kernel still
			// answers the other nodes. This is permitted for a limited time.
			if agree && !down && len(could) > 0 {
				w.judged++
				if len(answer) == 0 {
					find(taken, "no node answers for %s, and %v could", a, could)
				}
			}
		}
	}
	w.wrong = wrong
	w.In(100*time.Millisecond, w.judge)
}

// TestSimulation makes random changes to nodes and their network. The following holds for nodes
// that hear each other and have the same data. Three seconds after the last change, exactly one of
// them answers for each address that has a candidate, and this node is a candidate. When the time
// settled has passed, no address moves any more.
func TestSimulation(t *testing.T) {
	const worlds = 500
	var moves, judged, takeovers, mute int
	for seed := range uint64(worlds) {
		w := &simulation{Simulation: linktest.New(t, seed, 31), wrong: map[string]time.Duration{}}
		for i := range 2 + w.Random.IntN(4) {
			m := &simulated{name: fmt.Sprint("node", i), address: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), mac: neighbor.MAC{2, 0, 0, 0, 0, byte(i)}, online: true}
			m.Link, m.Offset = true, w.UpTo(time.Hour)
			w.machines, w.bare = append(w.machines, m), append(w.bare, &m.Machine)
			w.facts.nodes = append(w.facts.nodes, Node{Name: m.name, Ready: true, Addresses: []netip.Addr{m.address}})
		}
		for _, a := range many(4) {
			w.facts.services = append(w.facts.services, Service{Addresses: []netip.Addr{a}})
		}
		for _, m := range w.machines {
			m.Start()
			w.start(m)
		}
		w.lease()
		w.In(w.UpTo(20*time.Second), w.disturb)
		w.judge()
		w.Run(5 * time.Minute)
		moves, judged, takeovers, mute = moves+w.moves, judged+w.judged, takeovers+w.takeovers, mute+w.mute
	}
	t.Logf("%d runs: answers changed %d times, %d nodes died, %d times a node had to answer for an address, %d times a running node had not announced itself for a long time", worlds, moves, takeovers, judged, mute)
	if moves < 8*worlds || takeovers < 2*worlds || judged < 1000*worlds || mute < 10*worlds {
		t.Error("the runs have too few changes for this test")
	}
}
