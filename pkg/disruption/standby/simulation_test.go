package standby

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
)

// TestSimulation simulates random worlds, each with a machine that returns to the inventory: it
// wipes itself, is switched off, and is later switched on again. Faults are a slow wipe, an
// unreliable power switch, changes of the leader, uses of the power button, orders that are
// withdrawn, an addition of the machine to the cluster by hand, and other hosts that state the same
// UUID. In a calm world the machine reports in the end, or is a member. At each step these rules
// are checked:
//
//   - A wipe is not cut off during Grace, and a wipe that was cut off is recorded.
//   - Without an order no machine is switched on.
//   - A member of the cluster is not switched on or off.
//   - A machine is not switched off while another host states its UUID.
//   - A host gets the power switch only while the right machine is on, only if the host is younger
//     than the order, and only if no third host states the UUID.
func TestSimulation(t *testing.T) {
	var c counts
	for seed := range uint64(2000) {
		w := &simulation{rand: rand.New(rand.NewPCG(seed, 125)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), counts: &c}
		if err := w.run(); err != nil {
			t.Fatalf("world %d: after %v: %v: %+v", seed, w.now.Sub(w.begin), err, w)
		}
		for n, event := range map[*int]bool{&c.Reported: w.equipped == right, &c.Stolen: w.equipped == wrong, &c.Cut: w.cut, &c.Wiped: w.wipes > 1, &c.Manual: w.manual, &c.Joined: w.joined} {
			if event {
				*n++
			}
		}
	}
	t.Logf("%+v", c)
	for name, n := range map[string]int{"report": c.Reported, "theft": c.Stolen, "cut": c.Cut, "second wipe": c.Wiped, "power button": c.Manual, "join": c.Joined, "surplus": c.Surplus, "twin": c.Twin, "old twin": c.Old, "third host": c.Third} {
		if n == 0 {
			t.Errorf("this event never happened: %s", name)
		}
	}
}

// counts are the numbers of worlds in which a machine reported, another host was first, a wipe was
// cut off by the controllers after Grace or repeated, the power button was used, and the machine
// became a member. The other fields are the numbers of steps in which an operator helped or a rule
// mattered.
type counts struct {
	Reported, Stolen, Cut, Wiped, Manual, Joined int
	Operator, Surplus, Twin, Old, Third          int
}

// The hosts that can get the power switch.
const (
	nobody = iota
	right
	wrong
)

type simulation struct {
	machine
	counts *counts
	rand   *rand.Rand
	begin  time.Time
	now    time.Time
	liar   time.Time // since when another waiting host states the UUID; zero if none
	third  bool      // a third host, which does not wait, states the UUID of the machine
	deaf   bool      // the power switch does not answer
	host   Host

	returned time.Time
	ordered  bool
	equipped int
	cut      bool
	manual   bool
}

// machine is the real machine. It is on until its wipe ends. A boot before the end of the wipe
// repeats the wipe.
type machine struct {
	on       bool
	booted   time.Time
	wipeEnd  time.Time // zero after the end of the wipe
	wipes    int
	reported time.Time // since when it waits with its new key; zero if it does not
	joined   bool      // an operator has added it to the cluster by hand
}

const bootTime = 2 * time.Minute

func (w *simulation) run() error {
	w.begin, w.returned = w.now, w.now
	w.on, w.wipes, w.wipeEnd = true, 1, w.now.Add(time.Duration(w.rand.IntN(15*60))*time.Second)
	w.host.Operation = Operation{Phase: SwitchOff, Since: w.now}
	for ; w.equipped == nobody; w.now = w.now.Add(5 * time.Second) {
		age := w.now.Sub(w.begin)
		if age > 4*time.Hour && w.joined {
			return nil
		}
		if age > 4*time.Hour {
			return errors.New("the machine does not report")
		}
		w.disturb(age < 2*time.Hour)
		w.live()
		if err := w.decide(); err != nil {
			return err
		}
		w.sets(age > 2*time.Hour)
	}
	return nil
}

// sets acts as MachineSets do: it gives the order to switch the machine on, or withdraws this
// order.
func (w *simulation) sets(calm bool) {
	idle := w.host.Phase == Off || w.host.Phase == Surplus
	switch {
	case idle && (calm || w.rand.IntN(100) == 0):
		w.host.Operation, w.ordered = Operation{Phase: SwitchOn, Since: w.now, For: "rack", Unconfirmed: w.host.Unconfirmed}, true
	case !calm && (w.host.Phase == SwitchOn || w.host.Phase == Boot) && w.rand.IntN(200) == 0:
		w.host.Operation, w.returned = Operation{Phase: Surplus, Since: w.now, Unconfirmed: w.host.Unconfirmed}, w.now
		w.counts.Surplus++
	}
}

func (w *simulation) disturb(turmoil bool) {
	if !turmoil {
		w.liar, w.deaf, w.third = time.Time{}, false, false
		stops := w.host.Phase == SwitchOff || w.host.Phase == Surplus
		if !w.reported.IsZero() && (stops || !w.reported.After(w.host.Since)) {
			w.equipped = right // an operator compares the fingerprint, and sets spec.power
			w.counts.Operator++
		}
		return
	}
	switch w.rand.IntN(600) {
	case 0:
		if w.liar.IsZero() {
			w.liar = w.now
		} else {
			w.liar = time.Time{}
		}
	case 1:
		w.deaf = !w.deaf
	case 2:
		w.host.Reading = fence.Reading{} // another leader
	case 3:
		w.manual = true
		w.button()
	case 4:
		w.third = !w.third
	case 5:
		w.joined = w.joined || !w.reported.IsZero()
	}
}

// button presses the power button.
func (w *simulation) button() {
	if w.on {
		w.on = false
	} else {
		w.powerOn()
	}
}

func (w *simulation) powerOn() {
	if w.on {
		return
	}
	w.on, w.booted = true, w.now
	if !w.wipeEnd.IsZero() { // the wipe was cut off
		w.wipes, w.wipeEnd = w.wipes+1, w.now.Add(bootTime+time.Minute)
	}
}

func (w *simulation) live() {
	if w.on && !w.wipeEnd.IsZero() && !w.now.Before(w.wipeEnd) {
		w.on, w.wipeEnd = false, time.Time{}
	}
	switch waits := w.on && w.wipeEnd.IsZero() && w.now.Sub(w.booted) > bootTime && !w.joined; {
	case !waits:
		w.reported = time.Time{}
	case w.reported.IsZero():
		w.reported = w.now
	}
	h := &w.host
	h.Twins, h.Others, h.InUse, h.Twin = 0, 0, "", time.Time{}
	for _, since := range []time.Time{w.reported, w.liar} {
		if !since.IsZero() {
			h.Twins++
			h.Twin = since
		}
	}
	if h.Twins > 1 {
		h.Twin = time.Time{}
	}
	if w.third {
		h.Others++
	}
	if w.joined {
		h.InUse = "the Node states the same UUID"
	}
}

// equip checks that a twin may get the power switch.
func (w *simulation) equip() error {
	switch {
	case !w.on && w.now.Sub(w.host.Reading.At) > fence.Fresh:
		return errors.New("a host gets the power switch of a machine that is off")
	case w.joined:
		return errors.New("a host gets the power switch of a member of the cluster")
	case w.third || w.host.Twins != 1:
		return errors.New("several hosts state the UUID, and one gets the power switch")
	case !w.reported.IsZero():
		w.equipped = right
	case !w.liar.After(w.host.Since):
		return errors.New("a host that waited before the order gets the power switch")
	default:
		w.equipped = wrong
	}
	return nil
}

func (w *simulation) decide() error {
	w.observe()
	v := Decide(w.now, w.host)
	changes := v.Operation != w.host.Operation
	if v.Equip {
		if err := w.equip(); err != nil {
			return err
		}
	}
	w.host.Operation = v.Operation
	if w.host.Phase == Off && w.cut && !w.wipeEnd.IsZero() && !w.host.Unconfirmed {
		return errors.New("a machine that was not erased is shown as off")
	}
	if v.Action == fence.Nothing {
		return nil
	}
	if changes && v.Action != fence.Read || !w.host.Reads() {
		return fmt.Errorf("action %s without a stored phase", v.Action)
	}
	if w.joined && v.Action != fence.Read {
		return fmt.Errorf("action %s on a member of the cluster", v.Action)
	}
	if w.deaf {
		w.host.Reading.Problem = "no answer"
		return nil
	}
	return w.act(v.Action)
}

// observe counts the steps in which a rule matters.
func (w *simulation) observe() {
	late := w.now.Sub(w.host.Since) > Grace
	switch {
	case (w.host.Phase == SwitchOff || w.host.Phase == Surplus) && late && w.on && w.host.Twins > 0:
		w.counts.Twin++
	case w.host.Phase == Boot && w.host.Twins == 1 && w.host.Others > 0:
		w.counts.Third++
	case w.host.Phase == Boot && w.host.Twins == 1 && !w.host.Twin.After(w.host.Since):
		w.counts.Old++
	}
}

// act performs a request to the power switch.
func (w *simulation) act(a fence.Action) error {
	switch a {
	case fence.TurnOff:
		if w.host.Twins > 0 {
			return errors.New("a machine is switched off that can wait under another key")
		}
		if w.on && w.now.Sub(w.returned) <= Grace {
			return errors.New("a wipe or a boot is cut off")
		}
		w.cut = w.cut || w.on && !w.wipeEnd.IsZero()
		w.on = false
	case fence.TurnOn:
		if !w.ordered && !w.manual {
			return errors.New("a machine is switched on without an order")
		}
		w.powerOn()
	}
	w.host.Reading = fence.Reading{Power: fence.Off, At: w.now}
	if w.on {
		w.host.Reading.Power = fence.On
	}
	return nil
}
