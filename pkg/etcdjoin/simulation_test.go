package etcdjoin

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestSimulation simulates thousands of random clusters with power cuts, lost disks and lost
// answers. No machine may bootstrap a cluster while another machine has data. After the faults end,
// all machines are voting members of one cluster, unless so many disks were lost that the remaining
// members have no quorum. In that case no machine may have changed the cluster by itself.
func TestSimulation(t *testing.T) {
	const worlds = 4000
	var ended [3]int
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, w.story)
		}
		ended[w.end]++
	}
	t.Logf("%d worlds: %d whole, %d without a quorum, %d that lost all data and bootstrapped again", worlds, ended[whole], ended[stuck], ended[bootstrappedAgain])
	for end, n := range ended {
		if n == 0 {
			t.Errorf("no world has the result %d (whole, stuck, bootstrappedAgain), so the simulation does not cover this case", end)
		}
	}
}

const (
	whole = iota
	stuck
	bootstrappedAgain
)

// world has machines, and the clusters of their data.
type world struct {
	rand       *rand.Rand
	machines   []*machine
	bootstraps int
	nextID     uint64
	end        int
	story      string
}

type machine struct {
	self  Self
	up    bool
	data  *cluster     // nil without data
	id    uint64       // member ID in its data
	asked []PeerAnswer // answers of the current round
	last  []PeerAnswer // answers of the previous round
}

// cluster is an etcd cluster with the members in its log.
type cluster struct{ members []Member }

func newWorld(seed uint64) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), nextID: 1}
	for i := range 2 + w.rand.IntN(4) {
		w.machines = append(w.machines, &machine{self: Self{Name: fmt.Sprintf("m%d", i), URL: PeerURL(addr(byte(i + 1))), First: i == 0}, up: w.chance(2)})
	}
	return w
}

func (w *world) chance(of int) bool { return w.rand.IntN(of) == 0 }

func (w *world) tell(format string, args ...any) { w.story += fmt.Sprintf(format+"\n", args...) }

func (w *world) run() error {
	for range 300 {
		w.fault()
		for _, m := range w.machines {
			if err := w.step(m, true); err != nil {
				return err
			}
		}
	}
	w.tell("the faults end")
	for _, m := range w.machines {
		m.up = true
	}
	for range 200 {
		for _, m := range w.machines {
			if err := w.step(m, false); err != nil {
				return err
			}
		}
	}
	return w.judge()
}

func (w *world) fault() {
	m := w.machines[w.rand.IntN(len(w.machines))]
	switch {
	case w.chance(6):
		m.up = !m.up
		m.asked, m.last = nil, nil
		w.tell("%s up=%v", m.self.Name, m.up)
	case w.chance(60):
		w.tell("%s loses its disk", m.self.Name)
		m.data, m.asked, m.last = nil, nil, nil
	}
}

// member returns the member with an ID, or nil if the cluster has no such member.
func (c *cluster) member(id uint64) *Member {
	if i := slices.IndexFunc(c.members, func(m Member) bool { return m.ID == id }); i >= 0 {
		return &c.members[i]
	}
	return nil
}

// alive counts the voters of a cluster, and the voters that are up with their data.
func (w *world) alive(c *cluster) (all, up int) {
	for _, m := range c.members {
		if m.Learner {
			continue
		}
		all++
		if slices.ContainsFunc(w.machines, func(o *machine) bool { return o.up && o.data == c && o.id == m.ID }) {
			up++
		}
	}
	return all, up
}

func (w *world) hasQuorum(c *cluster) bool {
	all, up := w.alive(c)
	return up >= all/2+1
}

// answer returns the answer of the machine o to another machine. If lossy is true, the answer can
// be lost.
func (w *world) answer(o *machine, lossy bool) PeerAnswer {
	from := netip.MustParseAddrPort(o.self.URL[len("https://"):]).Addr()
	switch {
	case !o.up || lossy && w.chance(8):
		return PeerAnswer{From: from, Problem: "silent"}
	case o.data == nil:
		return PeerAnswer{From: from, State: NoData}
	case o.data.member(o.id) == nil:
		return PeerAnswer{From: from, Problem: "removed"} // etcd does not run there
	case !w.hasQuorum(o.data):
		return PeerAnswer{From: from, State: NoQuorum}
	}
	return PeerAnswer{From: from, State: Serving, Members: slices.Clone(o.data.members)}
}

// step makes a machine query one peer. After the last peer, the machine decides and acts. Any event
// can happen between two queries.
func (w *world) step(m *machine, lossy bool) error {
	if !m.up {
		return nil
	}
	if m.data != nil {
		w.promote(m)
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(w.machines), func(o *machine) bool { return o == m })
	if len(m.asked) < len(others) {
		m.asked = append(m.asked, w.answer(others[len(m.asked)], lossy))
		return nil
	}
	decided := Next(m.self, m.last, m.asked)
	m.last, m.asked = m.asked, nil
	via := slices.IndexFunc(w.machines, func(o *machine) bool { return PeerURL(decided.Via) == o.self.URL })
	switch decided.Action {
	case Bootstrap:
		w.tell("%s bootstraps a cluster", m.self.Name)
		for _, o := range w.machines {
			if o.data != nil && w.kept(o) {
				return fmt.Errorf("%s bootstraps a cluster although %s has data", m.self.Name, o.self.Name)
			}
		}
		w.bootstraps++
		m.id = w.id()
		m.data = &cluster{[]Member{{ID: m.id, Name: m.self.Name, URLs: []string{m.self.URL}}}}
	case Remove:
		w.remove(m, w.machines[via], decided.Member)
	case Add:
		w.add(m, w.machines[via], lossy)
	case Wait:
	}
	return nil
}

// kept reports whether a machine's data belongs to a cluster of which it is a member.
func (w *world) kept(o *machine) bool { return o.data.member(o.id) != nil }

func (w *world) id() uint64 { w.nextID++; return w.nextID }

// remove removes a member by the rules of etcd: only with a quorum, and only if a quorum remains.
func (w *world) remove(m, via *machine, which Member) {
	c := via.data
	if !via.up || c == nil || !w.hasQuorum(c) || c.member(which.ID) == nil {
		return
	}
	if now := c.member(which.ID); !now.Learner {
		all, up := w.alive(c)
		alive := slices.ContainsFunc(w.machines, func(o *machine) bool { return o.up && o.data == c && o.id == which.ID })
		if MayRemove(all, up, alive) != nil {
			return
		}
	}
	w.tell("%s has the member %d removed", m.self.Name, which.ID)
	c.members = slices.DeleteFunc(c.members, func(o Member) bool { return o.ID == which.ID })
}

// add adds a learner by the rules of etcd: only while all voters are connected. The answer can be
// lost.
func (w *world) add(m, via *machine, lossy bool) {
	c := via.data
	if !via.up || c == nil || !w.hasQuorum(c) {
		return
	}
	if all, up := w.alive(c); up < all || slices.ContainsFunc(c.members, func(o Member) bool { return slices.Contains(o.URLs, m.self.URL) }) {
		return
	}
	id := w.id()
	c.members = append(c.members, Member{ID: id, URLs: []string{m.self.URL}, Learner: true})
	if lossy && w.chance(3) {
		w.tell("%s is added as %d, and the answer is lost", m.self.Name, id)
		return
	}
	w.tell("%s is added as %d", m.self.Name, id)
	m.data, m.id = c, id
}

// promote makes a started learner a voter.
func (w *world) promote(m *machine) {
	if own := m.data.member(m.id); own != nil && w.hasQuorum(m.data) {
		own.Name, own.Learner = m.self.Name, false
	}
}

// judge checks the final state, after all events.
func (w *world) judge() error {
	c := w.machines[0].data
	for _, m := range w.machines {
		if m.data == nil || m.data.member(m.id) == nil {
			return w.excuse(m)
		}
		if m.data != c {
			return fmt.Errorf("%s is in another cluster than %s", m.self.Name, w.machines[0].self.Name)
		}
	}
	if all, up := w.alive(c); up != len(w.machines) || all != len(w.machines) {
		return fmt.Errorf("of %d machines %d are voting members, and %d of them up", len(w.machines), all, up)
	}
	w.end = whole
	if w.bootstraps > 1 {
		w.end = bootstrappedAgain
	}
	return nil
}

// excuse returns nil if a machine may stay outside the cluster for ever: a cluster has no quorum,
// or the data of a machine belongs to a member that was removed in its absence. Otherwise it
// returns an error.
func (w *world) excuse(m *machine) error {
	for _, o := range w.machines {
		if o.data != nil && (o.data.member(o.id) == nil || !w.hasQuorum(o.data)) {
			w.end = stuck
			return nil
		}
	}
	return fmt.Errorf("%s is outside the cluster without a reason", m.self.Name)
}
