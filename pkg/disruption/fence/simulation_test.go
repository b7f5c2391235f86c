package fence

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSimulation fences machines in random clusters, and checks the promises of the package at each
// tick: no pod of a StatefulSet runs twice, one machine is fenced at a time, and the control plane
// keeps its quorum. No machine is switched off after it has recovered, or while too many machines
// are unhealthy. Each fence ends, and each machine that was switched off is on at the end.
//
// The writes of an operation, a cycle and a taint fail independently. Requests take effect late.
// After a change, power switches report the former state for some seconds. Kubelets report before
// they are ready. The clocks of the leaders differ.
func TestSimulation(t *testing.T) {
	worlds := uint64(1000)
	if testing.Short() {
		worlds = 200
	}
	var total counts
	for seed := range worlds {
		w := newWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("world %d: %v\n%s", seed, err, w)
		}
		total.add(w.counts)
	}
	t.Logf("%+v", total)
	for name, n := range map[string]int{
		"fenced": total.fenced, "moved": total.moved, "returned": total.returned, "aborted": total.aborted, "failed": total.failed, "withdrawn": total.withdrawn,
		"cycled": total.cycled, "held": total.held, "waited": total.waited, "stays off": total.staysOff, "new leader": total.leaders, "late calls": total.late,
	} {
		if n == 0 {
			t.Errorf("this event never happened: %s", name)
		}
	}
}

// TestMutations checks that the simulation finds a broken promise if a guard of Decide is missing.
// Each mutation changes the input of Decide so that a guard has no effect, or changes the verdict
// of Decide.
func TestMutations(t *testing.T) {
	for name, m := range map[string]mutation{
		"the reading of the power":          {verdict: func(m Machine, v *Verdict) { release(m, v) }},
		"the age of the reading":            {facts: func(now time.Time, m *Machine) { m.Reading.At = now }},
		"the silence":                       {facts: func(_ time.Time, m *Machine) { m.Silent = !m.Ready }},
		"the recovery":                      {facts: func(_ time.Time, m *Machine) { m.Unhealthy = "not ready" }},
		"the maximum of unhealthy machines": {facts: func(_ time.Time, m *Machine) { m.Stopped = "" }},
		"the machine of the controllers":    {facts: func(_ time.Time, m *Machine) { m.Own = false }},
		"the quorum":                        {facts: func(_ time.Time, m *Machine) { m.ControlPlane = false }},
		"one fence at a time": {facts: func(_ time.Time, m *Machine) {
			if m.Operation.Phase == SwitchOff {
				m.Operation = Operation{}
			}
		}},
		"the withdrawal of a release": {verdict: func(m Machine, v *Verdict) {
			if m.Operation.Phase == Release || m.Operation.Phase == SwitchOff {
				v.Taint = cmp.Or(v.Taint, m.Taint)
			}
		}},
		"the return of a machine": {verdict: func(m Machine, v *Verdict) {
			if m.Operation.Phase == SwitchOff && v.Operation.Phase == SwitchOn {
				v.Operation = Operation{}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(1000) {
				w := newWorld(seed)
				w.mutation = m
				if err := w.run(); err != nil {
					t.Logf("world %d: %v", seed, err)
					return
				}
			}
			t.Error("no run of the simulation fails with this mutation")
		})
	}
}

// mutation changes the input or the output of Decide.
type mutation struct {
	facts   func(now time.Time, m *Machine)
	verdict func(m Machine, v *Verdict)
}

// release changes a verdict so that the pods of a machine are released before its power was read.
func release(m Machine, v *Verdict) {
	if m.Operation.Phase == SwitchOff && v.Action == TurnOff {
		v.Operation.Phase, v.Action, v.Taint = Release, Read, m.BootID
	}
}

// counts are the numbers of events in a world.
type counts struct {
	fenced, moved, returned, aborted, failed, withdrawn, cycled, held, waited, staysOff, leaders, late int
}

func (c *counts) add(o counts) {
	c.fenced += o.fenced
	c.moved += o.moved
	c.returned += o.returned
	c.aborted += o.aborted
	c.failed += o.failed
	c.withdrawn += o.withdrawn
	c.cycled += o.cycled
	c.held += o.held
	c.waited += o.waited
	c.staysOff += o.staysOff
	c.leaders += o.leaders
	c.late += o.late
}

const (
	tick = 5 * time.Second
	// turmoil is the time in which machines fail. settled is the time after which each fence must
	// have ended.
	turmoil, settled = 90 * time.Minute, 3 * time.Hour
	graceOfNode      = 50 * time.Second // until the Node of a silent machine is not ready
	toUnhealthy      = time.Minute      // the timeout of the check
	toEviction       = 3 * time.Minute  // until the pods of a Node that is not ready are evicted
)

// pod is an object of the API server.
type pod struct {
	name, node string
	uid        int
	offline    bool // it starts without an API server
	ending     bool // it has a deletion timestamp
}

// simulated is a machine: its real state, its Node, and what the controllers have stored and read.
type simulated struct {
	name         string
	plane        bool
	on           bool
	boots        int
	booted       time.Time // the time from which the kubelet runs
	hung, cut    bool      // the pods continue to run; the kubelet does not reach the API server
	dead         bool      // the kubelet does not start
	deaf         bool      // the power switch does not answer
	goesOff      time.Time // the time at which the power is cut; zero for none
	running      map[string]int
	record       map[string]int // the pods that start without an API server, on its disk
	offlineTried bool

	seen   time.Time // the last contact of the kubelet
	bootID string    // the boot ID in the Node
	ready  bool
	since  time.Time // the time of the last change of ready
	taint  string
	// reports means that the kubelet reports, even while it is not ready.
	reports bool
	readyAt time.Time // the time from which the kubelet is ready

	cached      Power // the answer of the power switch until cachedUntil
	cachedUntil time.Time
	ours        bool      // the controllers have switched it off, and nothing has switched it on
	worked      time.Time // the last time at which its part of the control plane worked
	denied      bool      // the controllers cannot operate its power switch

	operation Operation
	cycle     Cycle
	keepOff   bool
	reading   Reading
	call      *call
	verdict   Verdict
}

// call is a request to a power switch.
type call struct {
	action          Action
	sent, acts, end time.Time // acts is the time at which the request takes effect; zero after that
}

type world struct {
	rand     *rand.Rand
	now      time.Time
	start    time.Time
	machines []*simulated
	pods     []*pod
	names    []string // names of the pods
	offline  bool     // some pods start without an API server
	uid      int
	most     int // the maximum of unhealthy machines
	leader   *simulated
	absent   time.Time // the time until which there is no leader
	late     []lateCall
	mutation mutation
	// unchecked means that an operator has deleted the check.
	unchecked bool
	skew      time.Duration // the clock of the leader minus the real time
	counts    counts
}

// lateCall is a request of a former leader.
type lateCall struct {
	m *simulated
	*call
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 23))
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	w := &world{rand: r, now: start, start: start, most: 1 + r.IntN(4), offline: r.IntN(3) == 0}
	for i := range 1 + r.IntN(5) {
		w.join(fmt.Sprintf("c%d", i), true)
	}
	for i := range 1 + r.IntN(4) {
		w.join(fmt.Sprintf("w%d", i), false)
	}
	for i := range 1 + r.IntN(6) {
		w.names = append(w.names, fmt.Sprintf("db-%d", i))
	}
	return w
}

func (w *world) join(name string, plane bool) {
	m := &simulated{name: name, plane: plane, running: map[string]int{}, record: map[string]int{}, since: w.now, keepOff: w.maybe(0.1)}
	w.machines = append(w.machines, m)
	w.powerOn(m)
	m.booted = w.now
}

func (w *world) maybe(p float64) bool { return w.rand.Float64() < p }

// The method within returns a random multiple of tick, at most d.
func (w *world) within(d time.Duration) time.Duration {
	return time.Duration(w.rand.IntN(int(d/tick)+1)) * tick
}

func (w *world) String() string {
	text := fmt.Sprintf("after %v\n", w.now.Sub(w.start))
	for _, m := range w.machines {
		text += fmt.Sprintf("%+v\n", *m)
	}
	for _, p := range w.pods {
		text += fmt.Sprintf("%+v\n", *p)
	}
	return text
}

func (w *world) run() error {
	for ; w.now.Before(w.start.Add(settled)); w.now = w.now.Add(tick) {
		if w.now.Before(w.start.Add(turmoil)) {
			w.disturb()
		} else {
			w.calm()
		}
		for _, m := range w.machines {
			w.live(m)
		}
		w.kubernetes()
		if err := w.twice(); err != nil {
			return err
		}
		if err := w.control(); err != nil {
			return err
		}
	}
	facts := w.facts()
	for i, m := range w.machines {
		excused := facts.Machines[i].Stopped != "" || m.dead || m.operation.StayOff != "" || w.leader == nil || !w.quorum() ||
			slices.Contains([]State{TooMany, NoQuorum, Held}, m.verdict.State)
		if m.ours && !m.on && !excused && !(w.unchecked && !m.cycle.Given.IsZero()) {
			return fmt.Errorf("%s: it was switched off, and stays off: %+v", m.name, m.verdict)
		}
		ended := facts.Machines[i].Stopped != "" || m.ready && m.operation.Phase == "" && m.taint == ""
		if !ended && !w.unchecked && !m.dead && !slices.Contains([]State{TooMany, NoQuorum, Held, StaysOff}, m.verdict.State) && w.leader != nil && w.quorum() {
			return fmt.Errorf("%s: its fence has not ended: %+v", m.name, m.verdict)
		}
	}
	return nil
}

// disturb lets machines, networks, power switches and the leader fail.
func (w *world) disturb() {
	for _, m := range w.machines {
		switch {
		case w.maybe(0.0008):
			m.hung = true
		case w.maybe(0.0008):
			m.cut = true
		case m.cut && w.maybe(0.01):
			m.cut = false
		case w.maybe(0.0004):
			w.powerOff(m)
		case w.maybe(0.0003):
			m.dead, m.hung = true, true
		case w.maybe(0.001):
			m.deaf = true
		case m.deaf && w.maybe(0.003):
			m.deaf = false
		case !m.on && !w.unchecked && (!w.offline || !m.cut) && w.maybe(0.004): // by an operator
			w.powerOn(m)
		case w.maybe(0.0005):
			m.denied = true
		case m.denied && w.maybe(0.01):
			m.denied = false
		case m.cycle.Phase != SwitchOff && m.cycle.Phase != SwitchOn && m.verdict.Busy() == "" && w.sick(m) && w.maybe(0.01):
			m.cycle = Cycle{Given: w.now}
		}
	}
	for _, m := range w.machines {
		if m.operation.Phase == SwitchOff && m.call != nil && w.maybe(0.02) {
			w.unchecked = true // an operator deletes the check during the fence
		}
	}
	if w.maybe(0.004) {
		w.loseLeader()
		w.absent = w.now.Add(w.within(10 * time.Minute))
	}
}

// calm ends the failures that would otherwise last for ever, and starts repairs.
func (w *world) calm() {
	for _, m := range w.machines {
		m.deaf, m.cut, m.denied = false, false, false
		if m.verdict.State == Missing && w.now.Sub(m.cycle.Given) > 10*time.Minute { // a repair
			m.cycle = Cycle{Given: w.now}
		}
	}
}

func (w *world) powerOn(m *simulated) {
	if m.on {
		return
	}
	m.on, m.hung, m.offlineTried = true, m.dead, false
	m.boots++
	m.booted, m.goesOff, m.ours = w.now.Add(tick+w.within(55*time.Second)), time.Time{}, false
	m.readyAt = m.booted.Add(w.within(time.Minute))
	w.remember(m, Off)
}

// remember makes a power switch report the former state for some seconds, with a probability of
// 0.3.
func (w *world) remember(m *simulated, former Power) {
	if w.maybe(0.3) {
		m.cached, m.cachedUntil = former, w.now.Add(w.within(15*time.Second))
	}
}

func (w *world) powerOff(m *simulated) {
	w.remember(m, On)
	m.on, m.running, m.goesOff = false, map[string]int{}, time.Time{}
}

// live simulates a machine for a tick.
func (w *world) live(m *simulated) {
	if !m.goesOff.IsZero() && !w.now.Before(m.goesOff) {
		w.powerOff(m)
	}
	if !m.on || m.hung || m.dead || w.now.Before(m.booted) {
		return
	}
	if m.cut {
		if !m.offlineTried && len(m.running) == 0 && m.bootID != m.boot() {
			for name, uid := range m.record {
				m.running[name] = uid
			}
		}
		m.offlineTried = true
		return
	}
	m.seen, m.bootID, m.offlineTried, m.reports = w.now, m.boot(), true, true
	if ready := !w.now.Before(m.readyAt); m.ready != ready {
		m.ready, m.since = ready, w.now
	}
	w.kubelet(m)
}

func (m *simulated) boot() string { return fmt.Sprintf("%s-%d", m.name, m.boots) }

// kubelet compares the pods of a machine with the API server.
func (w *world) kubelet(m *simulated) {
	for name, uid := range m.running {
		p := w.find(name)
		if p == nil || p.uid != uid || p.ending {
			delete(m.running, name)
		}
	}
	m.record = map[string]int{}
	w.pods = slices.DeleteFunc(w.pods, func(p *pod) bool {
		if p.node != m.name {
			return false
		}
		_, runs := m.running[p.name]
		switch {
		case p.ending, m.taint != "" && !runs: // the kubelet does not start the pod
			return true
		case !runs:
			m.running[p.name] = p.uid
		}
		if p.offline {
			m.record[p.name] = p.uid
		}
		return false
	})
}

func (w *world) find(name string) *pod {
	for _, p := range w.pods {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (w *world) of(node string) (all []*pod) {
	for _, p := range w.pods {
		if p.node == node {
			all = append(all, p)
		}
	}
	return all
}

// kubernetes simulates the controllers for Nodes, for pods and for the StatefulSet.
func (w *world) kubernetes() {
	released := map[string]bool{}
	for _, m := range w.machines {
		if m.reports && w.now.Sub(m.seen) > graceOfNode {
			if m.ready {
				m.since = w.now
			}
			m.ready, m.reports = false, false
		}
		evicted := m.taint != "" || !m.ready && w.now.Sub(m.since) > toEviction
		for _, p := range w.of(m.name) {
			p.ending = p.ending || evicted
			if p.ending && m.taint != "" && !m.ready && w.maybe(0.3) {
				released[p.name] = true
			}
		}
	}
	w.counts.moved += len(released)
	w.pods = slices.DeleteFunc(w.pods, func(p *pod) bool { return released[p.name] })
	var open []*simulated
	for _, m := range w.machines {
		if m.ready && m.taint == "" {
			open = append(open, m)
		}
	}
	for _, name := range w.names {
		if len(open) > 0 && w.find(name) == nil {
			w.uid++
			w.pods = append(w.pods, &pod{name: name, uid: w.uid, node: open[w.rand.IntN(len(open))].name, offline: w.offline && w.maybe(0.5)})
		}
	}
}

// twice returns an error if a pod runs on two machines. The pods of a machine continue to run if
// the machine hangs or has no network.
func (w *world) twice() error {
	at := map[string]string{}
	for _, m := range w.machines {
		for name := range m.running {
			if at[name] != "" {
				return fmt.Errorf("pod %s runs on %s and on %s", name, at[name], m.name)
			}
			at[name] = m.name
		}
	}
	return nil
}

// loseLeader removes the leader. Its requests to power switches can still take effect later.
func (w *world) loseLeader() {
	for _, m := range w.machines {
		if m.call != nil {
			m.call.acts = w.now.Add(w.within(2 * time.Minute))
			w.late = append(w.late, lateCall{m, m.call})
		}
		m.call, m.reading = nil, Reading{}
	}
	w.leader = nil
}

// works reports whether the controllers on a machine can reach the API server.
func (w *world) works(m *simulated) bool {
	return m.plane && m.on && !m.hung && !m.cut && !m.dead && !w.now.Before(m.booted)
}

// control performs a pass of the controllers.
func (w *world) control() error {
	for _, m := range w.machines {
		if w.works(m) {
			m.worked = w.now
		}
	}
	w.late = slices.DeleteFunc(w.late, func(l lateCall) bool {
		if w.now.Before(l.acts) {
			return false
		}
		if !l.m.deaf {
			w.operate(l.m, l.action)
			w.counts.late++
		}
		return true
	})
	if w.leader != nil && !w.works(w.leader) {
		w.loseLeader()
		w.absent = w.now.Add(w.within(time.Minute))
	}
	if w.leader == nil && !w.now.Before(w.absent) {
		for _, m := range w.machines {
			if w.works(m) && w.quorum() {
				w.leader, w.skew = m, w.within(40*time.Second)-20*time.Second
				w.counts.leaders++
			}
		}
	}
	if w.leader == nil {
		return nil
	}
	for _, m := range w.machines {
		w.answer(m)
	}
	return w.decide()
}

// quorum reports whether etcd has a quorum.
func (w *world) quorum() bool {
	all, up := 0, 0
	for _, m := range w.machines {
		if m.plane {
			if all++; w.works(m) {
				up++
			}
		}
	}
	return up > all/2
}

// answer processes the request to the power switch of a machine: the request first takes effect,
// and later ends with a reading.
func (w *world) answer(m *simulated) {
	c := m.call
	if c == nil {
		return
	}
	if !c.acts.IsZero() && !w.now.Before(c.acts) {
		if c.acts = (time.Time{}); !m.deaf {
			w.operate(m, c.action)
		}
	}
	if w.now.Before(c.end) {
		return
	}
	m.call = nil
	if m.deaf {
		m.reading.Problem = "no answer"
		return
	}
	power := Off
	if m.on {
		power = On
	}
	if !m.goesOff.IsZero() {
		power = Unclear
	}
	if w.now.Before(m.cachedUntil) {
		power = m.cached
	}
	// The reading has the time of the request, because the state can have changed before the answer
	// arrives.
	m.reading = Reading{Power: power, At: w.now.Add(w.skew - min(tick, w.now.Sub(c.sent)))}
}

// operate performs an action of the power switch of a machine.
func (w *world) operate(m *simulated, a Action) {
	switch {
	case a == TurnOn:
		w.powerOn(m)
	case a == TurnOff && m.on && m.goesOff.IsZero():
		m.goesOff, m.ours = w.now.Add(w.within(30*time.Second)), true
	}
}

// sick reports whether the check finds a machine unhealthy.
func (w *world) sick(m *simulated) bool { return !m.ready && w.now.Sub(m.since) >= toUnhealthy }

// facts returns the input of Decide.
func (w *world) facts() World {
	now := w.now.Add(w.skew)
	in := World{Now: now}
	unhealthy := 0
	for _, m := range w.machines {
		if w.sick(m) {
			unhealthy++
		}
	}
	for _, m := range w.machines {
		out := Machine{Name: m.name, ControlPlane: m.plane, Own: m == w.leader, Operation: m.operation, Cycle: m.cycle}
		out.Checked, out.Available = !w.unchecked, m.ready && now.Sub(m.seen).Abs() <= 20*time.Second
		if w.sick(m) && out.Checked {
			out.Unhealthy = "not ready"
		}
		if unhealthy > w.most && out.Checked {
			out.Stopped = "too many"
		}
		out.Cycle.Valid = now.Sub(m.cycle.Given) < 4*time.Minute
		out.Node = Node{Exists: true, Ready: m.ready, Reports: m.reports, Silent: !m.reports && now.Sub(m.seen) >= Silence, BootID: m.bootID, Taint: m.taint}
		out.Reading, out.KeepOff = m.reading, m.keepOff
		if out.Pods.Read = w.maybe(0.9); m.denied {
			out.Access = "no Secret"
		}
		for _, p := range w.of(m.name) {
			if out.Left++; p.offline {
				out.Offline = p.name
			}
		}
		in.Machines = append(in.Machines, out)
	}
	return in
}

// decide calls Decide, checks its verdicts, stores them and acts on them.
func (w *world) decide() error {
	in := w.facts()
	seen := World{Now: in.Now, Machines: slices.Clone(in.Machines)}
	for i := range seen.Machines {
		if w.mutation.facts != nil {
			w.mutation.facts(in.Now, &seen.Machines[i])
		}
	}
	fenced := 0
	for i, v := range Decide(seen) {
		m, f := w.machines[i], in.Machines[i]
		if w.mutation.verdict != nil {
			w.mutation.verdict(f, &v)
		}
		if v.Operation.Phase == SwitchOff || v.Operation.Phase == Release {
			fenced++
		}
		if err := w.check(f, v); err != nil {
			return fmt.Errorf("%s: %w: %+v", m.name, err, v)
		}
		w.count(m, v)
		stored := v.Operation == m.operation && v.Cycle == m.cycle.Phase
		w.store(m, v)
		// The controllers cancel a request that is not wanted any more, if it has not taken effect
		// yet.
		if c := m.call; c != nil && !c.acts.IsZero() && c.action != Read && c.action != v.Action && w.maybe(0.8) {
			c.acts = time.Time{}
		}
		if v.Action == Nothing || m.call != nil || m.denied {
			continue
		}
		if !stored && v.Action != Read {
			return fmt.Errorf("%s: an action before its phase is stored: %+v", m.name, v)
		}
		length := w.within(3 * tick)
		m.call = &call{action: v.Action, sent: w.now, acts: w.now.Add(w.within(length)), end: w.now.Add(length)}
	}
	if fenced > 1 {
		return fmt.Errorf("%d machines are fenced", fenced)
	}
	return nil
}

// store writes the parts of a verdict in the order of the controllers. Each write can be lost: the
// removal of the taint, the operation, the cycle, the taint. After a failure other than a conflict,
// the remaining writes are omitted.
func (w *world) store(m *simulated, v Verdict) {
	m.verdict = v
	taint := func() {
		m.taint = v.Taint
	}
	writes := []func(){func() { m.operation = v.Operation }, func() { m.cycle.Phase = v.Cycle }, taint}
	if v.Taint == "" {
		writes = []func(){taint, writes[0], writes[1]}
	}
	for _, write := range writes {
		switch {
		case !w.maybe(0.1):
			write()
		case w.maybe(0.5): // a failure other than a conflict
			return
		}
	}
}

// check checks a verdict against the real state of the machines.
func (w *world) check(f Machine, v Verdict) error {
	now := w.now.Add(w.skew)
	if v.Taint != "" && f.Taint == "" && (f.Reading.Power != Off || now.Sub(f.Reading.At) > Fresh || !f.Silent || f.BootID != v.Operation.BootID) {
		return fmt.Errorf("a taint without a recent reading of Off, or on a Node that reports")
	}
	early := f.Operation.Phase == SwitchOn || f.Operation.Phase == Return || f.Operation.Phase == Release && f.Reading.Power != On
	if v.Taint == "" && f.Taint != "" && early && !f.Reports {
		return fmt.Errorf("the taint is removed too early")
	}
	if released := v.Operation.Phase == Release && f.Reports; v.Taint != "" && (v.Operation.Phase == SwitchOff || released) {
		return fmt.Errorf("a machine that may run keeps the taint")
	}
	if v.Action != TurnOff {
		return nil
	}
	switch {
	case f.Own:
		return fmt.Errorf("the controllers switch off their own machine")
	case f.Stopped != "":
		return fmt.Errorf("too many machines are unhealthy")
	case f.Unhealthy == "":
		return fmt.Errorf("a machine that has recovered is switched off")
	case v.State != Cycling && !f.Silent:
		return fmt.Errorf("a machine that reports is fenced")
	}
	all, up := 0, 0
	for _, o := range w.machines {
		if o.plane {
			// The controllers notice a failure some seconds later, by the Lease.
			if all++; o.name != f.Name && w.now.Sub(o.worked) <= time.Minute {
				up++
			}
		}
	}
	if w.plane(f.Name) && up <= all/2 {
		return fmt.Errorf("%d of %d control-plane machines are left", up, all)
	}
	return nil
}

// plane reports whether a machine is a control-plane machine.
func (w *world) plane(name string) bool {
	return slices.ContainsFunc(w.machines, func(m *simulated) bool { return m.name == name && m.plane })
}

func (w *world) count(m *simulated, v Verdict) {
	before, now := m.operation.Phase, v.Operation.Phase
	switch {
	case before == SwitchOff && now == Release:
		w.counts.fenced++
	case before == Release && now == SwitchOff:
		w.counts.withdrawn++
	case before == SwitchOff && now == Failed:
		w.counts.failed++
	case before == SwitchOff && now == SwitchOn:
		w.counts.aborted++
	case before == Return && now == "":
		w.counts.returned++
	}
	if m.cycle.Phase == SwitchOn && v.Cycle == Done {
		w.counts.cycled++
	}
	switch v.State {
	case TooMany, NoQuorum:
		w.counts.held++
	case Waiting:
		w.counts.waited++
	case StaysOff:
		w.counts.staysOff++
	}
}
