package standby

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
)

// TestSimulation returns a machine and has it switched on again, in random worlds with a slow wipe,
// an unreliable power switch, changes of the leader, uses of the power button, and another machine
// that states the same UUID. It checks that a wipe is not cut off during Grace, that no
// machine without an order is switched on, and that the other machine gets the power switch only
// while the right machine is on. In a calm world the machine reports in the end.
func TestSimulation(t *testing.T) {
	var reported, stolen, cut, wiped, manual int
	for seed := range uint64(500) {
		w := &simulation{rand: rand.New(rand.NewPCG(seed, 125)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		if err := w.run(); err != nil {
			t.Fatalf("world %d: after %v: %v: %+v", seed, w.now.Sub(w.begin), err, w)
		}
		for n, event := range map[*int]bool{&reported: w.equipped == right, &stolen: w.equipped == wrong, &cut: w.cut, &wiped: w.wipes > 1, &manual: w.manual} {
			if event {
				*n++
			}
		}
	}
	t.Logf("%d have reported, %d times another machine was first, %d wipes were cut off after their grace, %d were repeated, %d were switched on by hand", reported, stolen, cut, wiped, manual)
	if reported == 0 || stolen == 0 || cut == 0 || wiped == 0 || manual == 0 {
		t.Error("an event never happened")
	}
}

// The machines that can get the power switch.
const (
	nobody = iota
	right
	wrong
)

type simulation struct {
	rand  *rand.Rand
	begin time.Time
	now   time.Time
	// The machine: it is on until the wipe ends. A boot before the end repeats the wipe.
	on       bool
	booted   time.Time
	wipeEnd  time.Time // zero: the wipe has ended
	wipes    int
	liar     bool // another machine states its UUID
	deaf     bool // the power switch does not answer
	host     Host
	returned time.Time
	ordered  bool
	equipped int
	cut      bool
	manual   bool
}

const bootTime = 2 * time.Minute

func (w *simulation) run() error {
	w.begin, w.returned = w.now, w.now
	w.on, w.wipes, w.wipeEnd = true, 1, w.now.Add(time.Duration(w.rand.IntN(15*60))*time.Second)
	w.host.Operation = Operation{Phase: SwitchOff, Since: w.now}
	for ; w.equipped == nobody; w.now = w.now.Add(5 * time.Second) {
		age := w.now.Sub(w.begin)
		if age > 4*time.Hour {
			return errors.New("the machine does not report")
		}
		w.disturb(age < 2*time.Hour)
		w.live()
		if err := w.decide(); err != nil {
			return err
		}
		if !w.ordered && w.host.Phase == Off && w.rand.IntN(100) == 0 || age > 2*time.Hour && w.host.Phase == Off {
			w.host.Operation, w.ordered = Operation{Phase: SwitchOn, Since: w.now, For: "rack"}, true
		}
	}
	return nil
}

func (w *simulation) disturb(turmoil bool) {
	if !turmoil {
		w.liar, w.deaf = false, false
		return
	}
	switch w.rand.IntN(600) {
	case 0:
		w.liar = !w.liar
	case 1:
		w.deaf = !w.deaf
	case 2:
		w.host.Reading = fence.Reading{} // another leader
	case 3:
		if w.manual = true; w.on {
			w.on = false
		} else {
			w.powerOn()
		}
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
	w.host.Twins = 0
	if w.reports() {
		w.host.Twins++
	}
	if w.liar {
		w.host.Twins++
	}
}

// reports reports whether the machine waits with its new key.
func (w *simulation) reports() bool {
	return w.on && w.wipeEnd.IsZero() && w.now.Sub(w.booted) > bootTime
}

func (w *simulation) decide() error {
	v := Decide(w.now, w.host)
	changes := v.Operation != w.host.Operation
	w.host.Operation = v.Operation
	switch {
	case v.Equip && !w.on && w.now.Sub(w.host.Reading.At) > fence.Fresh:
		return errors.New("a machine that is off gives its power switch away")
	case v.Equip && w.reports():
		w.equipped = right
	case v.Equip:
		w.equipped = wrong
	}
	if v.Action == fence.Nothing {
		return nil
	}
	if changes && v.Action != fence.Read || !w.host.Reads() {
		return fmt.Errorf("action %s without a stored phase", v.Action)
	}
	if w.deaf {
		w.host.Reading.Problem = "no answer"
		return nil
	}
	switch v.Action {
	case fence.TurnOff:
		if w.on && !w.wipeEnd.IsZero() {
			if w.now.Sub(w.returned) <= Grace {
				return errors.New("a wipe is cut off")
			}
			w.cut = true
		}
		w.on = false
	case fence.TurnOn:
		if !w.ordered && !w.manual {
			return errors.New("switched on without an order")
		}
		w.powerOn()
	}
	w.host.Reading = fence.Reading{Power: fence.Off, At: w.now}
	if w.on {
		w.host.Reading.Power = fence.On
	}
	return nil
}
