package machineobject

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// TestRepairStep checks each row of the table of repairStep.
func TestRepairStep(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	given := now.Add(-time.Minute)
	order := func(at time.Time) *machineapi.RepairOrder {
		return &machineapi.RepairOrder{Step: string(repair.Reboot), Attempt: 1, Given: metav1.NewTime(at)}
	}
	answer := func(at time.Time, phase string) *machineapi.RepairStatus {
		return &machineapi.RepairStatus{Step: string(repair.Reboot), Given: metav1.NewTime(at), Phase: phase}
	}
	const started, refused = machineapi.RepairStarted, machineapi.RepairRefused
	for _, c := range []struct {
		name     string
		order    *machineapi.RepairOrder
		before   *machineapi.RepairStatus
		last     repairAttempt
		updating bool
		want     string // phase of the answer; empty means that there is no answer
		step     repair.Step
	}{
		{"no order", nil, nil, repairAttempt{}, false, "", ""},
		{"the order was removed", nil, answer(given, started), repairAttempt{}, false, "", ""},
		{"a new order", order(given), nil, repairAttempt{}, false, started, repair.Reboot},
		{"a step that the controllers perform themselves", &machineapi.RepairOrder{Step: string(repair.PowerCycle), Attempt: 1, Given: metav1.NewTime(given)}, answer(given.Add(-time.Hour), started), repairAttempt{}, false, "", ""},
		{"a new order after another one", order(given), answer(given.Add(-time.Hour), started), repairAttempt{given: given.Add(-time.Hour)}, false, started, repair.Reboot},
		{"a started order after a reboot", order(given), answer(given, started), repairAttempt{}, false, started, ""},
		{"a started order that machined accepted", order(given), answer(given, started), repairAttempt{given: given, ended: now}, false, started, ""},
		{"refused", order(given), answer(given, started), repairAttempt{given: given, ended: now, problem: "another has the turn"}, false, refused, ""},
		{"refused less than attemptInterval ago", order(given), answer(given, refused), repairAttempt{given: given, ended: now.Add(-attemptInterval + 1), problem: "another has the turn"}, false, refused, ""},
		{"refused attemptInterval ago", order(given), answer(given, refused), repairAttempt{given: given, ended: now.Add(-attemptInterval), problem: "another has the turn"}, false, started, repair.Reboot},
		{"refused before a restart of the component", order(given), answer(given, refused), repairAttempt{}, false, started, repair.Reboot},
		{"an expired order", order(now.Add(-repair.Life)), nil, repairAttempt{}, false, "", ""},
		{"an order that expired after it was refused", order(now.Add(-repair.Life)), answer(now.Add(-repair.Life), refused), repairAttempt{}, false, refused, ""},
		{"an order from the future", order(now.Add(time.Hour)), nil, repairAttempt{}, false, "", ""},
		{"during an update", order(given), nil, repairAttempt{}, true, "", ""},
	} {
		in := input{object: &machineapi.OrlopMachine{Spec: machineapi.OrlopMachineSpec{Repair: c.order}}, state: &api.ObjectState{}, repaired: c.last, now: now}
		next := machineapi.OrlopMachineStatus{Repair: c.before}
		if c.updating {
			next.Conditions = []metav1.Condition{{Type: machineapi.ConditionUpdating, Status: metav1.ConditionTrue}}
		}
		step := in.repairStep(&next, false)
		phase, message := "", ""
		if next.Repair != nil {
			phase, message = next.Repair.Phase, next.Repair.Message
		}
		if step != c.step || phase != c.want || c.name == "refused" && !strings.Contains(message, "another has the turn") {
			t.Errorf("%s: %q %q, step %q; want %q, step %q", c.name, phase, message, step, c.want, c.step)
		}
		if step != "" && in.repairStep(&next, false) != "" {
			t.Errorf("%s: the step is repeated", c.name)
		}
	}
	in := input{object: &machineapi.OrlopMachine{Spec: machineapi.OrlopMachineSpec{Repair: order(given)}}, now: now}
	if step := in.repairStep(&machineapi.OrlopMachineStatus{}, true); step != "" {
		t.Errorf("a step is performed while a change of the release starts: %s", step)
	}
}
