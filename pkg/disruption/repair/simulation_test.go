package repair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSimulation repairs 5000 random clusters, and checks the promises of the package at each tick.
// The limit of workers and the back-off apply. Only one control-plane machine is repaired at a
// time, while the others are healthy. No order is given while too many machines are unhealthy. A
// failure causes at most seven orders, and each repair ends.
func TestSimulation(t *testing.T) {
	const worlds = 5_000
	var total counts
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("world %d: %v\n%s", seed, err, w)
		}
		total.add(w.counts)
	}
	t.Logf("%+v", total)
	if total.orders == 0 || total.expired == 0 || total.healed == 0 || total.exhausted == 0 || total.stopped == 0 || total.waited == 0 || total.flapped == 0 {
		t.Errorf("one of the counted events never happened: %+v", total)
	}
}

// counts are the numbers of events in a world.
type counts struct{ orders, expired, healed, exhausted, stopped, waited, flapped int }

func (c *counts) add(o counts) {
	c.orders += o.orders
	c.expired += o.expired
	c.healed += o.healed
	c.exhausted += o.exhausted
	c.stopped += o.stopped
	c.waited += o.waited
	c.flapped += o.flapped
}

const (
	tick = time.Minute
	// turmoil is the time in which machines fail. A repair that has not ended after the time
	// endless is a failure of the test.
	turmoil, endless = 3 * time.Hour, 2 * 24 * time.Hour
	// toUnhealthy is the timeout of the checks.
	toUnhealthy = 5 * time.Minute
)

// simulated is a machine of a world: the state in its object, and its real state.
type simulated struct {
	Machine
	heals   Step          // the step that heals its failure; empty if no step heals it
	broken  bool          // it has a failure
	flaps   int           // how often the machine fails again some minutes after a repair
	acted   time.Time     // the time of the order on which the machine acted last
	away    time.Time     // the end of its action on an order
	clock   time.Duration // its clock minus the controllers' clock
	orders  []Order       // the orders since the last state Cleared
	relapse time.Time     // the time at which it fails again
}

type world struct {
	rand    *rand.Rand
	now     time.Time
	start   time.Time
	most    int
	trigger string
	all     []*simulated
	absent  time.Time // the time until which the controllers have no leader
	counts  counts
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 11))
	w := &world{rand: r, start: noon, now: noon, most: r.IntN(4), trigger: []string{"", "40%", "2", "100%"}[r.IntN(4)]}
	for i := range 1 + r.IntN(4) {
		w.join(fmt.Sprintf("c%d", i), true)
	}
	for i := range r.IntN(8) {
		w.join(fmt.Sprintf("w%d", i), false)
	}
	return w
}

func (w *world) join(name string, plane bool) {
	skew := time.Duration(w.rand.IntN(2*int(ClockSkew/time.Second))) * time.Second
	w.all = append(w.all, &simulated{Machine: Machine{Name: name, ControlPlane: plane, Checked: true, Ready: true, Since: noon.Add(-time.Hour), Power: w.maybe(0.5)}, clock: skew - ClockSkew})
}

func (w *world) maybe(p float64) bool { return w.rand.Float64() < p }

func (w *world) String() string {
	text := fmt.Sprintf("after %v, limit %d, trigger %q\n", w.now.Sub(w.start), w.most, w.trigger)
	for _, m := range w.all {
		text += fmt.Sprintf("%+v\n", *m)
	}
	return text
}

func (w *world) run() error {
	for {
		if w.now.Before(w.start.Add(turmoil)) {
			w.disturb()
		} else if pending := w.pending(); pending == "" {
			return nil
		} else if w.now.After(w.start.Add(endless)) {
			return fmt.Errorf("the repair has not ended: %s", pending)
		}
		for _, m := range w.all {
			w.live(m)
		}
		if !w.now.Before(w.absent) {
			if err := w.decide(); err != nil {
				return err
			}
		}
		w.now = w.now.Add(tick)
	}
}

// pending returns a description of a machine in repair; empty if each repair has ended.
func (w *world) pending() string {
	exhausted := 0
	for i, v := range Decide(w.view()) {
		switch m := w.all[i]; {
		case v.State == Healthy && m.Ready && m.relapse.IsZero():
		case v.State == Exhausted && m.broken:
			exhausted++
		case v.State == Stopped && w.trigger != "":
		case v.State == Waiting && m.ControlPlane && w.anotherIsBroken(m):
		default:
			return fmt.Sprintf("%s: %+v", m.Name, v)
		}
	}
	w.counts.exhausted += exhausted
	return ""
}

// anotherIsBroken reports whether another control-plane machine stays broken.
func (w *world) anotherIsBroken(m *simulated) bool {
	return slices.ContainsFunc(w.all, func(o *simulated) bool { return o != m && o.ControlPlane && o.broken })
}

// disturb makes single machines, all machines at once, or the controllers fail.
func (w *world) disturb() {
	for _, m := range w.all {
		if !m.broken && w.maybe(0.004) {
			w.fail(m)
			m.flaps, m.Silent = w.rand.IntN(3)*w.rand.IntN(3), w.maybe(0.2)
		}
	}
	if w.maybe(0.001) {
		for _, m := range w.all {
			w.fail(m)
		}
	}
	if w.maybe(0.01) {
		w.absent = w.now.Add(time.Duration(w.rand.IntN(60)) * time.Minute)
	}
}

func (w *world) fail(m *simulated) {
	m.broken, m.heals = true, []Step{RestartServices, Reboot, OtherSlot, PowerCycle, ""}[w.rand.IntN(5)]
	w.set(m, false)
}

func (w *world) set(m *simulated, ready bool) {
	if m.Ready != ready {
		m.Ready, m.Since = ready, w.now
	}
}

// live makes a machine act on its order, and writes the state of the machine into its object.
func (w *world) live(m *simulated) {
	if !m.relapse.IsZero() && !w.now.Before(m.relapse) {
		m.relapse = time.Time{}
		w.counts.flapped++
		w.fail(m)
	}
	if m.Order.Step != "" && (!m.Silent || !m.Order.Step.ByMachine()) && m.acted != m.Order.Given && m.Order.Valid(w.now.Add(m.clock)) && w.maybe(0.7) {
		m.acted, m.away = m.Order.Given, w.now.Add(time.Duration(1+w.rand.IntN(3))*tick)
		if m.Order.Step != RestartServices {
			w.set(m, false)
		}
	}
	if !m.away.IsZero() && !w.now.Before(m.away) {
		m.away = time.Time{}
		if m.broken && m.heals == m.Order.Step {
			m.broken = false
			w.counts.healed++
			if m.flaps > 0 {
				m.flaps--
				m.relapse = w.now.Add(time.Duration(1+w.rand.IntN(30)) * time.Minute)
			}
		}
		w.set(m, !m.broken)
	}
	if m.Unhealthy = ""; !m.Ready && w.now.Sub(m.Since) >= toUnhealthy {
		m.Unhealthy = "not ready"
	}
}

// view returns the input of the decision.
func (w *world) view() World {
	unhealthy := 0
	for _, m := range w.all {
		if m.Unhealthy != "" {
			unhealthy++
		}
	}
	trigger, err := ParseTrigger(w.trigger, "", len(w.all))
	if err != nil {
		panic(err)
	}
	in := World{Now: w.now, MaxInFlight: w.most}
	for _, m := range w.all {
		m.Stopped = trigger.Stopped(unhealthy, len(w.all))
		in.Machines = append(in.Machines, m.Machine)
	}
	return in
}

// decide makes a decision, checks it and stores its orders.
func (w *world) decide() error {
	in := w.view()
	workers, planes := 0, 0
	for i, v := range Decide(in) {
		m := w.all[i]
		switch v.State {
		case Ordered:
			if err := w.checkOrder(in, m, v.Order); err != nil {
				return err
			}
			if m.Order.Step != "" && m.acted != m.Order.Given {
				w.counts.expired++
			}
			m.Order, m.orders = v.Order, append(m.orders, v.Order)
			w.counts.orders++
		case Cleared:
			m.Order, m.orders = Order{}, nil
		case Stopped:
			w.counts.stopped++
		case Waiting:
			w.counts.waited++
		}
		if m.runs(w.now) && m.ControlPlane {
			planes++
		} else if m.runs(w.now) {
			workers++
		}
	}
	// A machine that fails again during its order is counted again.
	given := func(plane bool) bool {
		return slices.ContainsFunc(w.all, func(m *simulated) bool { return m.Order.Given.Equal(w.now) && m.ControlPlane == plane })
	}
	if given(true) && planes > 1 {
		return fmt.Errorf("%d control-plane machines are repaired", planes)
	}
	if given(false) && workers > max(1, w.most) {
		return fmt.Errorf("%d workers are repaired, and the limit is %d", workers, w.most)
	}
	return nil
}

// checkOrder checks a new order of a machine.
func (w *world) checkOrder(in World, m *simulated, o Order) error {
	if m.Stopped != "" || m.Unhealthy == "" {
		return fmt.Errorf("%s: an order for a machine that is %q, stopped %q", m.Name, m.Unhealthy, m.Stopped)
	}
	if last := m.Order; last.Step != "" && w.now.Before(last.Ends()) {
		return fmt.Errorf("%s: the order %+v follows %+v too early", m.Name, o, last)
	}
	if slices.ContainsFunc(m.orders, func(past Order) bool { return past.Step == o.Step && past.Attempt == o.Attempt }) || len(m.orders) > 6 {
		return fmt.Errorf("%s: the order %+v after %+v", m.Name, o, m.orders)
	}
	if o.Step == PowerCycle && !m.Power || o.Step.ByMachine() && m.Silent && m.Power {
		return fmt.Errorf("%s: the order %+v is impossible", m.Name, o)
	}
	for _, other := range in.Machines {
		if o.Step != RestartServices && m.ControlPlane && other.ControlPlane && other.Name != m.Name && !other.Ready {
			return fmt.Errorf("%s: an order while control-plane machine %s is not ready", m.Name, other.Name)
		}
	}
	return nil
}
