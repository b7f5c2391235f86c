package ondemand

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSimulation scales MachineDeployments in random worlds. It checks at each tick that the number
// of machines is between the minimum and the maximum. After a time without events, the number must
// not change any more, and no idle machine may be left. No pod that a machine can take may wait
// then, unless the maximum is reached or the inventory has no other host.
func TestSimulation(t *testing.T) {
	worlds := uint64(300)
	if testing.Short() {
		worlds = 60
	}
	var total counts
	for seed := range worlds {
		w := newSimulation(seed)
		if err := w.run(); err != nil {
			t.Fatalf("world %d: %v\n%s", seed, err, w)
		}
		total.up += w.counts.up
		total.down += w.counts.down
		total.full += w.counts.full
		total.hidden += w.counts.hidden
		total.withdrawn += w.counts.withdrawn
		total.stockOut += w.counts.stockOut
	}
	t.Logf("%+v", total)
	if total.up == 0 || total.down == 0 || total.full == 0 || total.hidden == 0 || total.withdrawn == 0 || total.stockOut == 0 {
		t.Error("an event never happened")
	}
}

const (
	tick    = 10 * time.Second
	turmoil = 2 * time.Hour
	// calm is the time after turmoil until nothing may change any more: for each machine, its idle
	// time and its departure. settled is the time for which nothing changes.
	calm, settled = 3 * time.Hour, time.Hour
)

type counts struct{ up, down, full, hidden, withdrawn, stockOut int }

// job is a pod.
type job struct {
	name   string
	cpu    int64
	hidden bool // the scheduler refuses it for a reason that the requests do not show
	on     string
	since  time.Time
}

// box is a machine of the simulation.
type box struct {
	name   string
	joins  time.Time
	leaves time.Time // zero: it stays
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
	names    int
	hides    bool
	changed  time.Time
	counts   counts
}

func newSimulation(seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 32))
	w := &simulation{rand: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), hides: r.IntN(4) == 0}
	w.min = r.IntN(3)
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
		if w.now.Before(begin.Add(turmoil)) {
			w.disturb()
		}
		w.inventory()
		w.schedule()
		if err := w.decide(); err != nil {
			return err
		}
	}
	if w.now.Sub(w.changed) < settled {
		return fmt.Errorf("the machines change without an event, last at %v", w.changed)
	}
	waits := slices.ContainsFunc(w.jobs, func(j *job) bool { return j.on == "" && !j.hidden })
	if waits && w.replicas < w.max && len(w.boxes) < w.stock {
		return errors.New("a pod waits, and neither the maximum nor the stock is used up")
	}
	hidden := slices.ContainsFunc(w.jobs, func(j *job) bool { return j.hidden })
	if idle := slices.ContainsFunc(w.boxes, func(b *box) bool { return w.empty(b) }); idle && !waits && !hidden && w.replicas > w.min {
		return errors.New("an idle machine is left")
	}
	return nil
}

// disturb adds and ends pods, and changes the leader.
func (w *simulation) disturb() {
	if w.rand.IntN(30) == 0 {
		for range 1 + w.rand.IntN(6) {
			w.names++
			j := &job{name: fmt.Sprint("p", w.names), cpu: 500 + 500*w.rand.Int64N(8), since: w.now, hidden: w.hides && w.rand.IntN(4) == 0}
			if w.jobs = append(w.jobs, j); j.hidden {
				w.counts.hidden++
			}
		}
	}
	if w.rand.IntN(40) == 0 {
		w.jobs = slices.DeleteFunc(w.jobs, func(*job) bool { return w.rand.IntN(2) == 0 })
	}
	if w.rand.IntN(500) == 0 {
		w.memory = Memory{}
	}
	if w.rand.IntN(600) == 0 {
		w.replicas = w.rand.IntN(8) // an operator
	}
}

// inventory gives the deployment its machines, or takes them away, as the claims do.
func (w *simulation) inventory() {
	w.boxes = slices.DeleteFunc(w.boxes, func(b *box) bool { return !b.leaves.IsZero() && w.now.After(b.leaves) })
	stay := w.staying()
	for len(stay) > w.replicas {
		i := max(slices.IndexFunc(stay, func(b *box) bool { return b.marked }), 0)
		stay[i].leaves = w.now.Add(3 * time.Minute)
		for _, j := range w.jobs {
			if j.on == stay[i].name { // the drain evicts it
				j.on, j.since = "", w.now
			}
		}
		stay = slices.Delete(stay, i, i+1)
	}
	for len(stay) < w.replicas && len(w.boxes) < w.stock {
		w.names++
		b := &box{name: fmt.Sprint("m", w.names), joins: w.now.Add(time.Duration(60+w.rand.IntN(300)) * time.Second)}
		w.boxes, stay = append(w.boxes, b), append(stay, b)
	}
	if len(stay) < w.replicas {
		w.counts.stockOut++
	}
}

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
		if j.on != "" || j.hidden {
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

func (w *simulation) decide() error {
	d := Deployment{Name: "rack", Min: w.min, Max: w.max, Replicas: w.replicas, Shape: &Shape{Resources: Resources{4000, 1, 100}}}
	d.IsLeaving = len(w.staying()) < len(w.boxes)
	for _, b := range w.staying() {
		d.Machines = append(d.Machines, Machine{Name: b.name, Ready: !w.now.Before(b.joins), Empty: w.empty(b), Marked: b.marked})
	}
	world := World{Now: w.now, Deployments: []Deployment{d}}
	for _, j := range w.jobs {
		if j.on == "" {
			world.Pods = append(world.Pods, Pod{Name: j.name, Since: j.since, Resources: Resources{CPU: j.cpu, Pods: 1}})
		}
	}
	var verdicts []Verdict
	w.memory, verdicts = w.memory.Decide(world)
	v := verdicts[0]
	if v.Replicas < w.min || v.Replicas > w.max {
		return fmt.Errorf("%d replicas", v.Replicas)
	}
	if v.Replicas < w.replicas-1 && v.State != Bounded {
		return fmt.Errorf("%d machines are removed at once", w.replicas-v.Replicas)
	}
	switch {
	case v.Replicas > w.replicas:
		w.counts.up++
	case v.State == Shrinks:
		if i := slices.IndexFunc(w.boxes, func(b *box) bool { return b.marked && b.leaves.IsZero() }); i >= 0 && w.used(w.boxes[i]) > 0 {
			return fmt.Errorf("machine %s is removed with its pods", w.boxes[i].name)
		}
		w.counts.down++
	case v.State == Full:
		w.counts.full++
	}
	if v.Replicas != w.replicas || v.Mark != "" || len(v.Unmark) > 0 {
		w.changed = w.now
	}
	w.replicas = v.Replicas
	for _, b := range w.boxes {
		b.marked = b.marked || b.name == v.Mark
		if slices.Contains(v.Unmark, b.name) {
			b.marked = false
			w.counts.withdrawn++
		}
	}
	return nil
}
