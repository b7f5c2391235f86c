package repair

import (
	"fmt"
	"time"
)

// Step is a step of a repair.
type Step string

// The steps, in their order.
const (
	RestartServices Step = "RestartServices" // the container runtime and the process "node"
	Reboot          Step = "Reboot"          // like a reboot by an operator, never forced
	OtherSlot       Step = "OtherSlot"       // like a rollback by an operator, never forced
	PowerCycle      Step = "PowerCycle"      // off and on by the controller (BMC) of the machine
)

// ByMachine reports whether the machine itself performs a step. The controllers perform the others.
func (s Step) ByMachine() bool { return s != PowerCycle }

// stage is a row of the table in the package comment.
type stage struct {
	step     Step
	attempts int
	wait     time.Duration
}

var stages = []stage{
	{RestartServices, 2, 5 * time.Minute}, {Reboot, 2, 10 * time.Minute}, {OtherSlot, 1, 20 * time.Minute}, {PowerCycle, 2, 10 * time.Minute},
}

const (
	// Life is how long a machine may begin to act on an order. It is shorter than each stage.wait,
	// so an order has expired before the next order is written.
	Life = 4 * time.Minute
	// ClockSkew is the maximum tolerated difference between the clocks of a machine and of the
	// controllers.
	ClockSkew = time.Minute
	// Cooldown is how long a machine must be healthy before its order is removed.
	Cooldown = time.Hour
)

// Order is a step for a machine. The zero value means no order.
type Order struct {
	Step    Step
	Attempt int       // of this step, from 1
	Given   time.Time // by the clock of the controllers
}

// Valid reports whether a machine may begin to act on an order.
func (o Order) Valid(now time.Time) bool {
	return o.Step != "" && now.After(o.Given.Add(-ClockSkew)) && now.Before(o.Given.Add(Life))
}

// Ends returns the time until which the machine must become healthy; otherwise the next step
// follows.
func (o Order) Ends() time.Time {
	for _, s := range stages {
		if s.step == o.Step {
			return o.Given.Add(s.wait << max(0, min(o.Attempt, s.attempts)-1))
		}
	}
	return o.Given // this version of the system does not know the step
}

// Machine is a machine of the cluster.
type Machine struct {
	Name         string
	ControlPlane bool
	// Checked means that a check covers the machine. A machine without a check gets no order.
	Checked bool
	// Unhealthy is the reason why a check finds the machine unhealthy; empty if the machine is
	// healthy, or has not been unhealthy for long enough.
	Unhealthy string
	// Ready means that the machine is ready now. Since is the time at which Ready last changed.
	Ready bool
	Since time.Time
	// Stopped is the reason why the check gives no orders at present (Trigger.Stopped); empty if it
	// gives orders.
	Stopped string
	// Busy is the reason why the machine itself cannot get an order at present, such as an update;
	// empty if it can.
	Busy  string
	Order Order // the last order
	// Power means that the controllers can operate the power switch of the machine. Otherwise the
	// step PowerCycle is left out.
	Power bool
	// Silent means that the Node of the machine does not report, so the machine does not read its
	// order. If Power is true, too, the repair leaves out the steps that the machine itself
	// performs.
	Silent bool
}

// next returns the order that follows the last order of the machine; false if it was the last.
func (m Machine) next(now time.Time) (Order, bool) {
	at, attempts := 0, 0
	for i, s := range stages {
		if s.step == m.Order.Step {
			at, attempts = i, m.Order.Attempt
		}
	}
	for _, s := range stages[at:] {
		if attempts < s.attempts && m.can(s.step) {
			return Order{s.step, attempts + 1, now}, true
		}
		attempts = 0
	}
	return Order{}, false
}

// can reports whether a step is possible.
func (m Machine) can(s Step) bool {
	if s.ByMachine() {
		return !m.Silent || !m.Power
	}
	return m.Power
}

// World is the input of Decide.
type World struct {
	Now time.Time
	// MaxInFlight is the maximum number of workers whose orders run at the same time; less than 1
	// means 1.
	MaxInFlight int
	Machines    []Machine
}

// State is the state of a machine in its repair.
type State string

// The states.
const (
	Healthy    State = "Healthy"    // there is nothing to repair
	Ordered    State = "Ordered"    // the machine gets Verdict.Order now
	Repairing  State = "Repairing"  // an order runs
	Recovered  State = "Recovered"  // it is healthy, but retains its order until the cooldown ends
	Cleared    State = "Cleared"    // its order is removed now
	Waiting    State = "Waiting"    // other machines are repaired first
	Stopped    State = "TooMany"    // too many machines are unhealthy
	Busy       State = "Busy"       // the machine itself is busy
	Exhausted  State = "NoStepLeft" // all steps have failed: an operator has to repair it
	NotChecked State = "NotChecked" // no check covers it
)

// Verdict is the decision about a machine.
type Verdict struct {
	State   State
	Message string // for operators; empty if the state needs no explanation
	Order   Order  // the new order; only in state Ordered
}

// Decide returns a verdict for each machine, in the order of the machines. The first row that
// applies decides:
//
//	the machine                                   verdict
//	is healthy, and its cooldown has ended        Cleared, or Healthy without an order
//	is healthy, and its order has ended           Recovered
//	is healthy, and ready since its order         Recovered
//	has no check                                  NotChecked
//	has an order that has not ended               Repairing
//	has no further step                           NoStepLeft
//	is busy                                       Busy
//	has a check that gives no orders at present   TooMany
//	is a worker beyond MaxInFlight                Waiting
//	is of the control plane, and must wait for    Waiting
//	another machine of the control plane (holds)
//	any other                                     Ordered
func Decide(w World) []Verdict {
	flight, planes := 0, 0
	for _, m := range w.Machines {
		switch {
		case !m.runs(w.Now):
		case m.ControlPlane:
			planes++
		default:
			flight++
		}
	}
	verdicts := make([]Verdict, len(w.Machines))
	for i, m := range w.Machines {
		v := m.verdict(w.Now)
		if v.State == Ordered {
			switch {
			case m.ControlPlane:
				if why := w.holds(i, planes, v.Order.Step); why != "" {
					v = Verdict{State: Waiting, Message: why}
				} else {
					planes++
				}
			case flight >= max(1, w.MaxInFlight):
				v = Verdict{State: Waiting, Message: fmt.Sprintf("%d workers are repaired at present", flight)}
			default:
				flight++
			}
		}
		verdicts[i] = v
	}
	return verdicts
}

// runs reports whether the order of a machine runs. If the machine has become ready since the
// order, the order does not run any more, so that another machine can get an order.
func (m Machine) runs(now time.Time) bool {
	return m.Order.Step != "" && now.Before(m.Order.Ends()) && !m.recovered()
}

// recovered reports whether the machine has become ready after it got its order, and is healthy.
func (m Machine) recovered() bool {
	return m.Ready && m.Unhealthy == "" && m.Since.After(m.Order.Given)
}

// verdict returns the decision about a machine, regardless of the other machines.
func (m Machine) verdict(now time.Time) Verdict {
	switch {
	case m.Unhealthy == "" && m.Order.Step == "":
		return Verdict{State: Healthy}
	case m.Unhealthy == "" && m.Ready && now.Sub(m.Since) >= Cooldown && now.Sub(m.Order.Given) >= Cooldown:
		return Verdict{State: Cleared}
	case m.Unhealthy == "" && !now.Before(m.Order.Ends()), m.recovered():
		return Verdict{State: Recovered, Message: fmt.Sprintf("after step %s, attempt %d", m.Order.Step, m.Order.Attempt)}
	case !m.Checked:
		return Verdict{State: NotChecked}
	case m.runs(now):
		return Verdict{State: Repairing, Message: fmt.Sprintf("step %s, attempt %d, until %s", m.Order.Step, m.Order.Attempt, m.Order.Ends().UTC().Format(time.RFC3339))}
	}
	next, more := m.next(now)
	switch {
	case !more:
		return Verdict{State: Exhausted, Message: "all steps of the repair have failed: repair or replace the machine; then remove spec.repair of its OrlopMachine"}
	case m.Busy != "":
		return Verdict{State: Busy, Message: m.Busy}
	case m.Stopped != "":
		return Verdict{State: Stopped, Message: m.Stopped}
	}
	return Verdict{State: Ordered, Message: fmt.Sprintf("step %s, attempt %d", next.Step, next.Attempt), Order: next}
}

// holds returns the reason why a control-plane machine must wait with a step; empty if it need not
// wait. For RestartServices, the health of the other control-plane machines does not matter,
// because this step does not stop etcd.
func (w World) holds(own, inFlight int, step Step) string {
	switch {
	case inFlight > 0:
		return "another control-plane machine is repaired at present"
	case step == RestartServices:
		return ""
	}
	for i, m := range w.Machines {
		if i != own && m.ControlPlane && (!m.Ready || m.Unhealthy != "") {
			return fmt.Sprintf("control-plane machine %s is not ready, too", m.Name)
		}
	}
	return ""
}
