package ondemand

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSimulation scales MachineDeployments in random worlds. Faults are changes of the leader,
// changes of the number by an operator, pods that the scheduler refuses for hidden reasons, taints
// that the deployment does not state, and a slow inventory that removes machines late. It checks
// these rules at each tick:
//
//   - The number of machines is between the minimum and the maximum.
//   - While the number is reduced because of an idle machine, no other machine leaves.
//   - A pod adds no machine after a machine had space for it for HelpTime, or when the machines are
//     known to have a taint that it does not tolerate.
//
// After a time without events, the number must not change any more, and no idle machine may be
// left. A pod that fits on a machine may wait only if the maximum is reached or the inventory has
// no other host.
func TestSimulation(t *testing.T) {
	worlds := uint64(200)
	if testing.Short() {
		worlds = 40
	}
	var total counts
	for seed := range worlds {
		w := newSimulation(seed)
		if err := w.run(); err != nil {
			t.Fatalf("world %d: %v\n%s", seed, err, w)
		}
		total.add(w.counts)
	}
	t.Logf("%+v", total)
	if slices.Contains([]int{total.up, total.down, total.full, total.hidden, total.withdrawn, total.stockOut, total.tainted, total.futile}, 0) {
		t.Error("one of the counted events never happened")
	}
}

const (
	tick    = 15 * time.Second
	turmoil = 2 * time.Hour
	// calm is the time after turmoil until nothing may change any more: for each machine, its idle
	// time and its departure. settled is the time for which nothing changes.
	calm, settled = 2 * time.Hour, 40 * time.Minute
)

// counts are the numbers of events.
type counts struct{ up, down, full, hidden, withdrawn, stockOut, tainted, futile int }

func (c *counts) add(o counts) {
	c.up, c.down, c.full, c.hidden = c.up+o.up, c.down+o.down, c.full+o.full, c.hidden+o.hidden
	c.withdrawn, c.stockOut, c.tainted, c.futile = c.withdrawn+o.withdrawn, c.stockOut+o.stockOut, c.tainted+o.tainted, c.futile+o.futile
}

// job is a pod.
type job struct {
	name   string
	cpu    int64
	hidden bool // the scheduler refuses it for a reason that the requests do not show
	strict bool // it does not tolerate the taint of the machines
	on     string
	since  time.Time
	roomy  time.Duration // how long it waited although a machine had space for it
}

// box is a machine of the simulation.
type box struct {
	name   string
	joins  time.Time
	leaves time.Time // zero if it stays
	marked bool
}

type simulation struct {
	rand     *rand.Rand
	now      time.Time
	min, max int
	stock    int // the hosts of the inventory
	replicas int
	boxes    []*box
	jobs     []*job
	memory   Memory
	known    *Shape // the shape of the last verdict (Verdict.Last)
	unhelped []string
	victim   string // the machine that shall leave because it is idle
	slow     bool   // the inventory removes no machine at present
	names    int
	worldOf
	changed time.Time
	counts  counts
}

// worldOf holds the properties of a world. hides: some pods are refused for hidden reasons. taints:
// the machines have a taint. futile: at the end, only pods wait that no machine helps.
type worldOf struct{ hides, taints, futile bool }

func newSimulation(seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 32))
	w := &simulation{rand: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), worldOf: worldOf{r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(2) == 0}}
	w.min = max(0, r.IntN(5)-2)
	w.max = w.min + r.IntN(5)
	w.stock = w.min + r.IntN(6)
	w.replicas = r.IntN(8)
	return w
}

func (w *simulation) String() string {
	text := fmt.Sprintf("%v: min %d, max %d, stock %d, replicas %d\n", w.now, w.min, w.max, w.stock, w.replicas)
	for _, b := range w.boxes {
		text += fmt.Sprintf("%+v\n", *b)
	}
	for _, j := range w.jobs {
		text += fmt.Sprintf("%+v\n", *j)
	}
	return text
}

func (w *simulation) run() error {
	begin := w.now
	for ; w.now.Before(begin.Add(turmoil + calm + settled)); w.now = w.now.Add(tick) {
		switch end := begin.Add(turmoil); {
		case w.now.Before(end):
			w.disturb()
		case w.now.Equal(end):
			w.last()
		}
		if err := w.inventory(); err != nil {
			return err
		}
		w.schedule()
		w.wait()
		if err := w.decide(); err != nil {
			return err
		}
	}
	if w.now.Sub(w.changed) < settled {
		return fmt.Errorf("the machines change without an event, last at %v", w.changed)
	}
	waits := slices.ContainsFunc(w.jobs, func(j *job) bool { return j.on == "" && !w.refused(j) })
	if waits && w.replicas < w.max && len(w.boxes) < w.stock {
		return errors.New("a pod waits, and neither the maximum nor the stock is used up")
	}
	if idle := slices.ContainsFunc(w.boxes, func(b *box) bool { return w.empty(b) }); idle && !waits && w.replicas > w.min {
		return errors.New("an idle machine is left")
	}
	return nil
}

// refused reports whether the scheduler refuses a pod on each machine.
func (w *simulation) refused(j *job) bool { return j.hidden || j.strict && w.taints }

// last makes the last changes: it adds pods that no machine helps. In a futile world, it first
// removes all other pods.
func (w *simulation) last() {
	if w.futile {
		w.jobs = nil
	}
	for _, hidden := range []bool{false, true} {
		j := &job{name: fmt.Sprint("last", hidden), cpu: 1000, since: w.now, hidden: hidden && w.hides, strict: !hidden}
		if w.refused(j) {
			w.jobs = append(w.jobs, j)
			w.counts.hidden++
		}
	}
}

// disturb adds and ends pods, and changes the leader.
func (w *simulation) disturb() {
	if w.rand.IntN(30) == 0 {
		for range 1 + w.rand.IntN(6) {
			w.names++
			j := &job{name: fmt.Sprint("p", w.names), cpu: 500 + 500*w.rand.Int64N(8), since: w.now, hidden: w.hides && w.rand.IntN(4) == 0, strict: w.rand.IntN(3) == 0}
			if w.jobs = append(w.jobs, j); j.hidden {
				w.counts.hidden++
			}
			if w.refused(j) && !j.hidden {
				w.counts.tainted++
			}
		}
	}
	if w.rand.IntN(40) == 0 {
		w.jobs = slices.DeleteFunc(w.jobs, func(*job) bool { return w.rand.IntN(2) == 0 })
	}
	if w.rand.IntN(500) == 0 {
		w.memory = Memory{}
		for _, j := range w.jobs {
			if !slices.Contains(w.unhelped, j.name) {
				j.roomy = 0
			}
		}
	}
	if w.rand.IntN(600) == 0 {
		w.replicas, w.victim = w.rand.IntN(8), "" // an operator
	}
	if w.rand.IntN(20) == 0 {
		w.slow = !w.slow
	}
	if w.replicas > w.max && w.rand.IntN(2) == 0 {
		w.max = w.replicas // an operator raises the maximum while machines are marked
	}
}

// inventory adds machines to the deployment, or removes machines, as the claims do. It removes
// machines in the order of a MachineSet: marked machines, then machines that have not joined, then
// the newest.
func (w *simulation) inventory() error {
	w.boxes = slices.DeleteFunc(w.boxes, func(b *box) bool { return !b.leaves.IsZero() && w.now.After(b.leaves) })
	stay := w.staying()
	if w.victim != "" && len(stay) <= w.replicas {
		w.victim = "" // the number was raised again
	}
	calm := w.now.Sub(w.started()) > turmoil
	for len(stay) > w.replicas && (!w.slow || calm) {
		rank := func(b *box) int {
			switch {
			case b.marked:
				return 0
			case w.now.Before(b.joins):
				return 1
			}
			return 2
		}
		slices.SortStableFunc(stay, func(a, b *box) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), b.joins.Compare(a.joins)) })
		if w.victim != "" && stay[0].name != w.victim {
			return fmt.Errorf("machine %s leaves instead of the idle machine %s", stay[0].name, w.victim)
		}
		w.victim = ""
		stay[0].leaves = w.now.Add(3 * time.Minute)
		for _, j := range w.jobs {
			if j.on == stay[0].name { // the drain evicts it
				j.on, j.since = "", w.now
			}
		}
		stay = stay[1:]
	}
	for len(stay) < w.replicas && len(w.boxes) < w.stock {
		w.names++
		b := &box{name: fmt.Sprint("m", w.names), joins: w.now.Add(time.Duration(60+w.rand.IntN(300)) * time.Second)}
		w.boxes, stay = append(w.boxes, b), append(stay, b)
	}
	if len(stay) < w.replicas {
		w.counts.stockOut++
	}
	return nil
}

// started returns the time at which the world begins.
func (w *simulation) started() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func (w *simulation) staying() (all []*box) {
	for _, b := range w.boxes {
		if b.leaves.IsZero() {
			all = append(all, b)
		}
	}
	return all
}

// schedule places pods on machines, as the scheduler does.
func (w *simulation) schedule() {
	for _, j := range w.jobs {
		if j.on != "" || w.refused(j) {
			continue
		}
		for _, b := range w.staying() {
			if !w.now.Before(b.joins) && w.used(b)+j.cpu <= 4000 {
				j.on = b.name
				break
			}
		}
	}
}

func (w *simulation) used(b *box) (cpu int64) {
	for _, j := range w.jobs {
		if j.on == b.name {
			cpu += j.cpu
		}
	}
	return cpu
}

func (w *simulation) empty(b *box) bool {
	return !w.now.Before(b.joins) && b.leaves.IsZero() && w.used(b) == 0
}

// facts returns the input of a decision.
func (w *simulation) facts() World {
	whole := Resources{4000, 1, 100}
	d := Deployment{Name: "rack", Min: w.min, Max: w.max, Replicas: w.replicas, Unhelped: w.unhelped, Shapes: Shapes{Last: w.known, Estimated: &Shape{Resources: whole}}}
	d.IsLeaving = len(w.staying()) < len(w.boxes)
	for _, b := range w.staying() {
		m := Machine{Name: b.name, Joined: b.joins, Empty: w.empty(b), Marked: b.marked}
		if !w.now.Before(b.joins) {
			m.Whole, m.Room = &Shape{Resources: whole}, &Shape{Resources: whole.minus(Resources{CPU: w.used(b)})}
			if w.taints {
				m.Whole.Taints = []Taint{{Key: "gpu", Effect: "NoSchedule"}}
				m.Room.Taints = m.Whole.Taints
			}
		}
		d.Machines = append(d.Machines, m)
	}
	world := World{Now: w.now, Deployments: []Deployment{d}}
	for _, j := range w.jobs {
		if j.on == "" {
			p := Pod{Name: j.name, UID: j.name, Since: j.since, Resources: Resources{CPU: j.cpu, Pods: 1}}
			if !j.strict {
				p.Tolerations = []Toleration{{Key: "gpu", Exists: true}}
			}
			world.Pods = append(world.Pods, p)
		}
	}
	return world
}

func (w *simulation) decide() error {
	var verdicts []Verdict
	w.memory, verdicts = w.memory.Decide(w.facts())
	v := verdicts[0]
	if v.Replicas < w.min || v.Replicas > w.max {
		if v.State != Bounded || v.Mark == nil && v.Unmark == nil {
			return fmt.Errorf("%d replicas", v.Replicas)
		}
	}
	if v.Replicas < w.replicas-1 && v.State != Bounded {
		return fmt.Errorf("%d machines are removed at once", w.replicas-v.Replicas)
	}
	switch {
	case v.Replicas > w.replicas && v.State == Grows:
		if err := w.grow(v); err != nil {
			return err
		}
	case v.State == Shrinks:
		w.counts.down++
		if w.victim = ""; len(w.staying()) > v.Replicas {
			marked := slices.DeleteFunc(w.staying(), func(b *box) bool { return !b.marked })
			if len(marked) != 1 || !w.empty(marked[0]) {
				return fmt.Errorf("the number is reduced with %d marked machines", len(marked))
			}
			w.victim = marked[0].name
		}
	case v.State == Full:
		w.counts.full++
	case v.State == Futile:
		w.counts.futile++
	}
	if v.Replicas != w.replicas || v.Mark != nil || v.Unmark != nil {
		w.changed = w.now
	}
	w.replicas, w.known, w.unhelped = v.Replicas, v.Last, v.Unhelped
	for _, b := range w.boxes {
		if b.marked = b.marked || slices.Contains(v.Mark, b.name); slices.Contains(v.Unmark, b.name) {
			b.marked = false
			w.counts.withdrawn++
		}
	}
	return nil
}

// grow checks a verdict that adds machines.
func (w *simulation) grow(v Verdict) error {
	w.counts.up++
	helps := func(j *job) bool {
		return j.on == "" && w.now.Sub(j.since) >= PendingTime && j.roomy < HelpTime && !(j.strict && w.taints && w.known != nil)
	}
	if !slices.ContainsFunc(w.jobs, helps) {
		return fmt.Errorf("%d machines are added for pods that no machine helps", v.Replicas-w.replicas)
	}
	return nil
}

// wait adds the time for which the pods wait although a machine has space for them.
func (w *simulation) wait() {
	for _, j := range w.jobs {
		space := func(b *box) bool {
			return !w.now.Before(b.joins) && w.used(b)+j.cpu <= 4000 && (w.empty(b) || b.joins.After(j.since)) && !(j.strict && w.taints)
		}
		if j.on == "" && slices.ContainsFunc(w.staying(), space) {
			j.roomy += tick
		}
	}
}
