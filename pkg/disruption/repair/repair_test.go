package repair

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// TestDecide checks each row of the table of Decide, for the first machine of a world.
func TestDecide(t *testing.T) {
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	sick := Machine{Name: "w1", Checked: true, Unhealthy: "its Node is not ready", Since: ago(10 * time.Minute)}
	with := func(change func(*Machine)) Machine {
		m := sick
		change(&m)
		return m
	}
	ordered := func(step Step, attempt int, given time.Time) Machine {
		return with(func(m *Machine) { m.Order = Order{step, attempt, given} })
	}
	well := func(m Machine, since time.Time) Machine {
		m.Unhealthy, m.Ready, m.Since = "", true, since
		return m
	}
	power := func(m Machine, silent bool) Machine {
		m.Power, m.Silent = true, silent
		return m
	}
	plane := func(name string, m Machine) Machine {
		m.Name, m.ControlPlane = name, true
		return m
	}
	for _, c := range []struct {
		name     string
		machines []Machine
		most     int
		want     State
		order    Order
		message  string
	}{
		{"healthy", []Machine{well(sick, ago(time.Minute))}, 1, Healthy, Order{}, ""},
		{"unhealthy", []Machine{sick}, 1, Ordered, Order{RestartServices, 1, noon}, "step RestartServices, attempt 1"},
		{"without a check", []Machine{with(func(m *Machine) { m.Checked = false })}, 1, NotChecked, Order{}, ""},
		{"busy", []Machine{with(func(m *Machine) { m.Busy = "it updates" })}, 1, Busy, Order{}, "it updates"},
		{"too many machines are unhealthy", []Machine{with(func(m *Machine) { m.Stopped = "2 of 3" })}, 1, Stopped, Order{}, "2 of 3"},
		{"an order runs", []Machine{ordered(Reboot, 1, ago(9*time.Minute))}, 1, Repairing, Order{}, "until 2026-01-01T12:01:00Z"},
		{"the second attempt", []Machine{ordered(RestartServices, 1, ago(5*time.Minute))}, 1, Ordered, Order{RestartServices, 2, noon}, ""},
		{"the back-off doubles", []Machine{ordered(RestartServices, 2, ago(9*time.Minute))}, 1, Repairing, Order{}, ""},
		{"the next step", []Machine{ordered(RestartServices, 2, ago(10*time.Minute))}, 1, Ordered, Order{Reboot, 1, noon}, ""},
		{"the last step", []Machine{ordered(Reboot, 2, ago(20*time.Minute))}, 1, Ordered, Order{OtherSlot, 1, noon}, ""},
		{"no step is left", []Machine{ordered(OtherSlot, 1, ago(20*time.Minute))}, 1, Exhausted, Order{}, "repair or replace the machine"},
		{"the power switch after the last step", []Machine{power(ordered(OtherSlot, 1, ago(20*time.Minute)), false)}, 1, Ordered, Order{PowerCycle, 1, noon}, ""},
		{"a second power cycle", []Machine{power(ordered(PowerCycle, 1, ago(10*time.Minute)), false)}, 1, Ordered, Order{PowerCycle, 2, noon}, ""},
		{"no step is left after the power cycles", []Machine{power(ordered(PowerCycle, 2, ago(20*time.Minute)), false)}, 1, Exhausted, Order{}, "repair or replace the machine"},
		{"the power switch is not configured any more", []Machine{ordered(PowerCycle, 1, ago(10*time.Minute))}, 1, Exhausted, Order{}, ""},
		{"a silent machine with a power switch", []Machine{power(sick, true)}, 1, Ordered, Order{PowerCycle, 1, noon}, ""},
		{"a silent machine between two attempts", []Machine{power(ordered(Reboot, 1, ago(10*time.Minute)), true)}, 1, Ordered, Order{PowerCycle, 1, noon}, ""},
		{"a silent machine without a power switch", []Machine{with(func(m *Machine) { m.Silent = true })}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
		{"a step of another version", []Machine{ordered("Replace", 1, ago(time.Minute))}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
		{"recovered", []Machine{well(ordered(Reboot, 1, ago(5*time.Minute)), ago(time.Minute))}, 1, Recovered, Order{}, "after step Reboot"},
		{"recovered, and unhealthy again", []Machine{ordered(Reboot, 1, ago(50*time.Minute))}, 1, Ordered, Order{Reboot, 2, noon}, ""},
		{"away for its reboot", []Machine{with(func(m *Machine) { m.Unhealthy, m.Order = "", Order{Reboot, 1, ago(time.Minute)} })}, 1, Repairing, Order{}, ""},
		{"healthy for an hour", []Machine{well(ordered(Reboot, 1, ago(70*time.Minute)), ago(time.Hour))}, 1, Cleared, Order{}, ""},
		{"healthy for less than an hour", []Machine{well(ordered(Reboot, 1, ago(70*time.Minute)), ago(59*time.Minute))}, 1, Recovered, Order{}, ""},
		{"another worker is repaired", []Machine{sick, ordered(Reboot, 1, ago(time.Minute))}, 1, Waiting, Order{}, "1 workers"},
		{"two workers within the limit", []Machine{sick, ordered(Reboot, 1, ago(time.Minute))}, 2, Ordered, Order{RestartServices, 1, noon}, ""},
		{"no limit counts as 1", []Machine{sick, ordered(Reboot, 1, ago(time.Minute))}, 0, Waiting, Order{}, ""},
		{"a recovered worker does not count", []Machine{sick, well(ordered(Reboot, 1, ago(5*time.Minute)), ago(time.Minute))}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
		{"a single control-plane machine", []Machine{plane("c1", sick)}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
		{"a control-plane machine, the others are healthy", []Machine{plane("c1", sick), plane("c2", well(sick, noon)), sick}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
		{"two control-plane machines are unhealthy", []Machine{plane("c1", sick), plane("c2", sick)}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
		{"two control-plane machines are unhealthy, and a step stops etcd", []Machine{plane("c1", ordered(RestartServices, 2, ago(time.Hour))), plane("c2", sick)}, 1, Waiting, Order{}, "control-plane machine c2 is not ready, too"},
		{"another control-plane machine is repaired", []Machine{plane("c1", sick), plane("c2", ordered(Reboot, 1, ago(time.Minute)))}, 1, Waiting, Order{}, "another control-plane machine"},
		{"the repair of a worker does not delay that of a control-plane machine", []Machine{plane("c1", sick), ordered(Reboot, 1, ago(time.Minute))}, 1, Ordered, Order{RestartServices, 1, noon}, ""},
	} {
		got := Decide(World{Now: noon, MaxInFlight: c.most, Machines: c.machines})[0]
		if got.State != c.want || got.Order != c.order || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s: %+v, want %s, order %+v, %q", c.name, got, c.want, c.order, c.message)
		}
	}
}

// TestValid checks the time in which a machine may begin to act on an order.
func TestValid(t *testing.T) {
	o := Order{Reboot, 1, noon}
	for after, want := range map[time.Duration]bool{
		-ClockSkew: false, -ClockSkew + time.Second: true, 0: true, Life - time.Second: true, Life: false, time.Hour: false,
	} {
		if got := o.Valid(noon.Add(after)); got != want {
			t.Errorf("after %v: %t, want %t", after, got, want)
		}
	}
	if (Order{}).Valid(noon) {
		t.Error("an empty order is valid")
	}
	for _, s := range stages {
		if ends := (Order{s.step, 1, noon}).Ends(); !ends.After(noon.Add(Life + ClockSkew - 1)) {
			t.Errorf("%s: the next order can come at %v, while the machine may still begin", s.step, ends)
		}
	}
}

// TestTrigger checks the rules by which a check stops repairs when too many machines are unhealthy,
// and the errors for invalid rules.
func TestTrigger(t *testing.T) {
	for _, c := range []struct {
		most, inRange       string
		machines, unhealthy int
		stopped             bool
		problem             string
	}{
		{"", "", 3, 3, false, ""},
		{"1", "", 3, 1, false, ""},
		{"1", "", 3, 2, true, ""},
		{"40%", "", 5, 2, false, ""},
		{"40%", "", 5, 3, true, ""},
		{"40%", "", 2, 1, true, ""},
		{"0%", "", 5, 1, true, ""},
		{"100%", "", 5, 5, false, ""},
		{"", "[3-5]", 9, 2, true, ""},
		{"", "[3-5]", 9, 5, false, ""},
		{"1", "[3-5]", 9, 4, false, ""},
		{"", "[3-5]", 9, 6, true, ""},
		{"", "[5-3]", 9, 6, false, "the smaller number first"},
		{"", "3-5", 9, 6, false, "expected a range"},
		{"", "[3-99999999999999999999]", 9, 6, false, "expected a range"},
		{"many", "", 9, 6, false, "expected a number"},
		{"-1", "", 9, 6, false, "expected a number"},
		{"%", "", 9, 6, false, "expected a number"},
		{"101%", "", 9, 6, false, "at most 100%"},
	} {
		trigger, err := ParseTrigger(c.most, c.inRange, c.machines)
		if (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%q %q: error %v, want %q", c.most, c.inRange, err, c.problem)
		}
		if err == nil && (trigger.Stopped(c.unhealthy, c.machines) != "") != c.stopped {
			t.Errorf("%q %q, %d of %d: %q, want stopped %t", c.most, c.inRange, c.unhealthy, c.machines, trigger.Stopped(c.unhealthy, c.machines), c.stopped)
		}
	}
}
