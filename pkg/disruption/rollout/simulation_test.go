package rollout

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSimulation runs rollouts in 10,000 random worlds, and checks the promises of the package at
// each tick: a quorum of etcd, the limit of unavailable workers, the order, halts, windows, pauses,
// gates and canaries, and that each rollout ends.
func TestSimulation(t *testing.T) {
	const worlds = 10_000
	var total counts
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("world %d: %v\n%s", seed, err, w)
		}
		total.add(w.counts)
	}
	t.Logf("%+v", total)
	if total.permits == 0 || total.rollbacks == 0 || total.expired == 0 || total.crashes == 0 || total.failedGates == 0 || total.refusals == 0 || total.forced == 0 {
		t.Errorf("one of the counted events never happened: %+v", total)
	}
}

// counts are the numbers of events in a world. The test fails if a kind of event never happens.
type counts struct{ permits, expired, rollbacks, refusals, crashes, failedGates, forced int }

func (c *counts) add(o counts) {
	c.permits += o.permits
	c.expired += o.expired
	c.rollbacks += o.rollbacks
	c.refusals += o.refusals
	c.crashes += o.crashes
	c.failedGates += o.failedGates
	c.forced += o.forced
}

// tick is the resolution of a world.
const tick = 30 * time.Second

// turmoil is the time in which operators, crashes and broken releases disturb a rollout. A rollout
// that has not ended after the time endless is a failure of the test.
const (
	turmoil = 2 * time.Hour
	endless = 60 * 24 * time.Hour
)

// phase is the phase of a simulated machine.
type phase int

const (
	idle phase = iota
	preparing
	away
	trial
	returning
)

// simulated is a machine of a world: the state in its object, and its real state.
type simulated struct {
	Machine
	phase   phase
	until   time.Time // the end of the phase
	target  string
	before  string // the release before the upgrade
	crashed time.Time
	sick    bool          // the crash affects only its node, so the machine can start an upgrade
	clock   time.Duration // the machine's clock minus the controllers' clock
	eager   float64       // the probability that it starts in a tick with a permit
}

// world is a random cluster with its operator and its controllers.
type world struct {
	rand     *rand.Rand
	start    time.Time
	now      time.Time
	machines []*simulated
	policy   Policy
	crashes  bool
	broken   map[string]bool // the releases with a failing trial
	release  int             // the newest release
	absent   time.Time       // the time until which the controllers have no leader
	// evaluated is the number of machines that had the release when the gates were evaluated.
	evaluated int
	byHand    string // the machine that the operator upgrades with --force
	counts    counts
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 7))
	w := &world{rand: r, start: time.Date(2026, 3, 28, 20, 0, 0, 0, time.UTC), crashes: seed%2 == 0, broken: map[string]bool{}, release: 1}
	w.now = w.start
	for i := range 1 + r.IntN(5) {
		w.add(fmt.Sprintf("p%d", i), true)
	}
	for i := range r.IntN(9) {
		w.add(fmt.Sprintf("w%d", i), false)
	}
	w.policy.MaxUnavailable = r.IntN(4)
	if w.maybe(0.3) {
		w.policy.MinReady = time.Duration(r.IntN(10)) * time.Minute
	}
	if w.maybe(0.5) {
		w.policy.CanarySoak = time.Duration(r.IntN(30)) * time.Minute
	}
	for range r.IntN(3) * r.IntN(2) {
		w.policy.Windows = append(w.policy.Windows, Window{
			Days: []time.Weekday{time.Weekday(r.IntN(7)), time.Weekday(r.IntN(7))}[:r.IntN(3)], Start: time.Duration(r.IntN(24*60)) * time.Minute, Length: time.Duration(1+r.IntN(24)) * time.Hour,
		})
	}
	for i := range r.IntN(3) * r.IntN(2) {
		w.policy.Gates = append(w.policy.Gates, Gate{Name: fmt.Sprintf("g%d", i)})
	}
	w.elect()
	w.want()
	return w
}

func (w *world) add(name string, plane bool) {
	w.machines = append(w.machines, &simulated{
		Machine: Machine{Name: name, ControlPlane: plane, Canary: w.maybe(0.2), Have: "1", Ready: true, Since: w.now.Add(-time.Hour)},
		clock:   time.Duration(w.rand.Int64N(2*int64(ClockSkew))) - ClockSkew,
		eager:   0.03 + 0.4*w.rand.Float64()*w.rand.Float64(),
	})
}

func (w *world) maybe(p float64) bool { return w.rand.Float64() < p }

// soon returns a random time, at most the given number of ticks from now.
func (w *world) soon(ticks int) time.Time {
	return w.now.Add(time.Duration(1+w.rand.IntN(ticks)) * tick)
}

func (w *world) calm() bool { return w.now.Sub(w.start) > turmoil }

func (w *world) planes() (out []*simulated) {
	for _, m := range w.machines {
		if m.ControlPlane {
			out = append(out, m)
		}
	}
	return out
}

// elect elects a leader of etcd among the control-plane machines that are ready.
func (w *world) elect() {
	var ready []*simulated
	for _, m := range w.planes() {
		if m.Leader = false; m.Ready {
			ready = append(ready, m)
		}
	}
	if len(ready) > 0 {
		ready[w.rand.IntN(len(ready))].Leader = true
	}
}

// want sets a new wanted release of all machines, or of some.
func (w *world) want() {
	w.release++
	release := strconv.Itoa(w.release)
	w.broken[release] = !w.calm() && w.maybe(0.3)
	all := w.calm() || w.maybe(0.8)
	for _, m := range w.machines {
		if all || w.maybe(0.5) {
			m.Want = release
			if m.RolledBack != release {
				m.RolledBack = ""
			}
		}
	}
}

// run runs the world until its rollout has ended.
func (w *world) run() error {
	for !w.done() {
		if w.now.Sub(w.start) > endless {
			return fmt.Errorf("the rollout has not ended after %v", endless)
		}
		if w.policy.Paused = w.policy.Paused && !w.calm(); !w.calm() {
			w.disturb()
		}
		for _, m := range w.machines {
			w.step(m)
		}
		if leader := slices.IndexFunc(w.machines, func(m *simulated) bool { return m.Leader && m.Ready }); leader < 0 || w.maybe(0.05) {
			w.elect()
		}
		var next time.Time
		if w.now.After(w.absent) && w.maybe(0.25) {
			var err error
			if next, err = w.control(); err != nil {
				return err
			}
		}
		if err := w.check(); err != nil {
			return err
		}
		w.advance(next)
	}
	return nil
}

// done reports whether each machine has its wanted release after the turmoil.
func (w *world) done() bool {
	return w.calm() && !slices.ContainsFunc(w.machines, func(m *simulated) bool { return m.phase != idle || m.behind() || !m.Ready })
}

// advance advances the clock by a tick. In a calm world in which all machines are idle, it
// advances to the time that the decision names, so a wrong time makes a rollout endless.
func (w *world) advance(next time.Time) {
	w.now = w.now.Add(tick)
	if w.calm() && next.After(w.now) && !slices.ContainsFunc(w.machines, func(m *simulated) bool {
		return m.phase != idle || !m.Ready || m.Permit.covers(w.now) || m.failed()
	}) {
		w.now = next
	}
}

// disturb performs random actions of operators, and random failures.
func (w *world) disturb() {
	if w.maybe(0.01) {
		w.policy.Paused = !w.policy.Paused
	}
	if w.maybe(0.003) {
		w.want()
	}
	if w.maybe(0.01) {
		w.absent = w.soon(60)
	}
	for _, m := range w.machines {
		if w.crashes && w.maybe(0.002) {
			w.counts.crashes++
			m.crashed, m.sick = w.soon(100), w.maybe(0.5)
		}
	}
}

// ready sets the health that the object of a machine shows.
func (w *world) ready(m *simulated, ready bool) {
	if m.Ready != ready {
		m.Ready, m.Since = ready, w.now
	}
}

// step performs a tick of a machine.
func (w *world) step(m *simulated) {
	if w.now.Before(m.crashed) {
		w.ready(m, false)
		m.until = m.until.Add(tick)
		if m.phase == idle && m.sick {
			w.begin(m)
		}
		return
	}
	if m.phase == idle {
		w.ready(m, true)
		w.begin(m)
		return
	}
	if w.now.Before(m.until) {
		w.ready(m, m.phase == preparing || m.phase == trial && !w.broken[m.target])
		return
	}
	switch m.phase {
	case preparing:
		if w.maybe(0.1) {
			w.counts.refusals++
			m.phase, m.Updating = idle, false
			break
		}
		m.phase, m.until = away, w.soon(20)
		w.ready(m, false)
	case away:
		m.phase, m.until, m.Have = trial, w.soon(15), m.target
	case trial:
		if m.phase, m.Updating = idle, false; w.broken[m.target] {
			m.phase, m.until, m.Updating = returning, w.soon(20), true
			w.ready(m, false)
		}
	case returning:
		w.counts.rollbacks++
		m.phase, m.Updating, m.Have = idle, false, m.before
		if m.Want == m.target {
			m.RolledBack = m.target
		}
	}
}

// begin starts the upgrade of a machine if its permit is valid by its own clock.
func (w *world) begin(m *simulated) {
	forced := w.byHand == m.Name
	switch {
	case !m.behind() || m.failed() || !forced && !m.Permit.Allows(m.Want, w.now.Add(m.clock)):
	case w.maybe(m.eager):
		m.phase, m.until, m.target, m.before, m.Updating = preparing, w.soon(20), m.Want, m.Have, true
		w.byHand = ""
	}
}

// control performs a pass of the controllers, and the reactions of an operator to its result.
func (w *world) control() (next time.Time, err error) {
	world := World{Policy: w.policy, Now: w.now, Machines: make([]Machine, 0, len(w.machines))}
	for _, m := range w.machines {
		world.Machines = append(world.Machines, m.Machine)
	}
	d := Decide(world)
	for i, v := range d.Verdicts {
		if v.State == OutsideWindow && d.Next.IsZero() {
			return next, fmt.Errorf("machine %s waits for a window, and the decision names no time", v.Name)
		}
		if v.State != Permitted {
			continue
		}
		m := w.machines[i]
		if err := w.checkPermit(m, d); err != nil {
			return next, fmt.Errorf("machine %s has a permit: %w", m.Name, err)
		}
		w.counts.permits++
		if m.Permit.Release == v.Permit.Release {
			w.counts.expired++
		}
		m.Permit = v.Permit
	}
	w.operate(d)
	if d.Step != "" || w.byHand != "" {
		return next, nil // the rollout waits for the operator
	}
	return d.Next, nil
}

// operate performs the reactions of an operator: the gates, another release after a rollback, and
// an upgrade by hand where no permit is possible.
func (w *world) operate(d Decision) {
	if d.Step != "" && w.maybe(0.3) {
		release := d.Step[:strings.LastIndexByte(d.Step, '-')]
		w.evaluated = w.having(release)
		for i := range w.policy.Gates {
			g := &w.policy.Gates[i]
			if g.Step, g.State = d.Step, GatePassed; !w.calm() && w.maybe(0.2) {
				w.counts.failedGates++
				g.State = GateFailed
			}
		}
	}
	for i, v := range d.Verdicts {
		switch {
		case v.State == RolledBack && w.maybe(0.05):
			w.want()
			return
		case v.State == NoQuorum && w.byHand == "" && w.calm():
			w.counts.forced++
			w.byHand = w.machines[i].Name
		}
	}
}

// having returns the number of machines that have finished a release.
func (w *world) having(release string) (n int) {
	for _, m := range w.machines {
		if m.Want == release && m.Have == release && m.phase == idle {
			n++
		}
	}
	return n
}

// String describes the world.
func (w *world) String() string {
	out := fmt.Sprintf("at %v (%v): policy %+v\n", w.now, w.now.Sub(w.start), w.policy)
	for _, m := range w.machines {
		out += fmt.Sprintf("  %+v\n", *m)
	}
	return out
}

// limit returns the maximum number of workers that may be unavailable or in progress.
func (w *world) limit() int { return max(1, w.policy.MaxUnavailable) }

// check checks the promises that hold at any time.
func (w *world) check() error {
	planes, ready, going := 0, 0, 0
	away, busy := 0, 0
	for _, m := range w.machines {
		switch {
		case m.ControlPlane:
			planes++
			if m.Ready {
				ready++
			}
			if m.phase != idle {
				going++
			}
		default:
			if !m.Ready {
				away++
			}
			if m.phase != idle {
				busy++
			}
		}
	}
	switch {
	case going > 1:
		return fmt.Errorf("%d control-plane machines change their release at a time", going)
	case !w.crashes && planes > 2 && ready < planes/2+1:
		return fmt.Errorf("no quorum: %d of %d", ready, planes)
	case busy > w.limit():
		return fmt.Errorf("%d workers change their release at a time", busy)
	case !w.crashes && away > w.limit():
		return fmt.Errorf("%d workers are unavailable", away)
	}
	return nil
}

// checkPermit checks the promises that hold for a new permit.
func (w *world) checkPermit(m *simulated, d Decision) error {
	if w.policy.Paused {
		return fmt.Errorf("the rollout is paused")
	}
	if !w.open() {
		return fmt.Errorf("no window is open")
	}
	for _, g := range w.policy.Gates {
		if g.State != GatePassed || w.having(m.Want) != w.evaluated {
			return fmt.Errorf("gate %s has not passed", g.Name)
		}
	}
	around := 0 // workers that are unavailable or in progress
	for _, o := range w.machines {
		if o.behind() && o.RolledBack == o.Want {
			return fmt.Errorf("machine %s has rolled back", o.Name)
		}
		if !o.ControlPlane && (o == m || !o.Ready || o.phase != idle) {
			around++
		}
		if o == m {
			continue
		}
		if err := w.checkPair(m, o); err != nil {
			return err
		}
	}
	if !m.ControlPlane && m.Ready && around > w.limit() {
		return fmt.Errorf("%d workers are unavailable or in progress", around)
	}
	return nil
}

// checkPair checks the promises about another machine o that hold for a new permit of m.
func (w *world) checkPair(m, o *simulated) error {
	finished := o.Have == o.Want && o.phase == idle
	switch {
	case m.ControlPlane && o.ControlPlane && (!o.Ready || o.phase != idle):
		return fmt.Errorf("control-plane machine %s is away", o.Name)
	case !m.ControlPlane && o.ControlPlane && o.Want != "" && !finished:
		return fmt.Errorf("control-plane machine %s must be upgraded before", o.Name)
	case !m.Canary && o.Canary && o.ControlPlane == m.ControlPlane && o.Want == m.Want && (!finished || !o.Ready || w.now.Before(o.Since.Add(w.policy.CanarySoak))):
		return fmt.Errorf("canary %s must be upgraded before", o.Name)
	case m.ControlPlane && m.Leader && !m.Canary && o.ControlPlane && o.Want != "" && !finished:
		return fmt.Errorf("machine %s must be upgraded before the leader", o.Name)
	}
	return nil
}

// open reports whether a window is open now. Unlike the package, it examines each minute before
// now.
func (w *world) open() bool {
	for _, win := range w.policy.Windows {
		for at := w.now.Truncate(time.Minute); w.now.Sub(at) < win.Length; at = at.Add(-time.Minute) {
			midnight := time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
			if at.Sub(midnight) == win.Start && (len(win.Days) == 0 || slices.Contains(win.Days, at.Weekday())) {
				return true
			}
		}
	}
	return len(w.policy.Windows) == 0
}
