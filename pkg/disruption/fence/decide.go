package fence

import (
	"cmp"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/etcdjoin"
)

// State is the state of a machine in its fence.
type State string

// The states.
const (
	Idle        State = "Idle"          // there is nothing to do
	Held        State = "Held"          // by an operator or the check, or the controllers run on it
	NoSwitch    State = "NoPowerSwitch" // the controllers cannot operate the power switch
	TooMany     State = "TooMany"       // too many machines are unhealthy
	NoQuorum    State = "NoQuorum"      // the other control-plane machines are no quorum
	Waiting     State = "Waiting"       // another machine is fenced first
	Cycling     State = "PowerCycle"    // the step PowerCycle of a repair runs
	SwitchesOff State = "SwitchingOff"  // phase SwitchOff
	Releasing   State = "Releasing"     // phase Release
	SwitchesOn  State = "SwitchingOn"   // phase SwitchOn
	StaysOff    State = "StaysOff"      // phase Return, and an operator has to switch it on
	Returning   State = "Returning"     // phase Return
	Missing     State = "NotReturned"   // phase Return, for longer than ReturnTime
	Returned    State = "Returned"      // the machine is back, and the fence ends now
	Unconfirmed State = "NotConfirmed"  // phase Failed
	Contrary    State = "Contradiction" // the machine runs, although its power was read as Off
)

// Action is a request to a power switch.
type Action string

// The actions. Each of them ends with a reading of the power.
const (
	Nothing Action = ""
	Read    Action = "read"
	TurnOff Action = "off"
	TurnOn  Action = "on"
)

// Verdict is the decision about a machine.
type Verdict struct {
	State   State
	Message string // for operators; empty if the state needs no explanation
	// Operation and Cycle are the states to store. If one of them differs from the stored state,
	// Action is not TurnOff or TurnOn, because the controllers store a phase before they act on it.
	Operation Operation
	Cycle     Phase
	Action    Action
	// Taint is the boot ID for the taint of the Node; empty if the Node must not have the taint.
	Taint string
}

// Off reports whether the power switch has reported the machine as off, and the machine has not
// returned yet.
func (v Verdict) Off() bool {
	return v.Operation.Phase == Release || v.Operation.Phase == SwitchOn || v.Operation.Phase == Return
}

// Busy returns the reason why a repair gives the machine no order at present; empty if it may give
// one.
func (v Verdict) Busy() string {
	switch v.State {
	case Waiting, SwitchesOff, Releasing, SwitchesOn, StaysOff, Returning, Contrary:
		return "the machine is fenced: " + string(v.State)
	}
	return ""
}

// Decide returns a verdict for each machine, in the order of the machines. For a machine without an
// operation, or with one in phase Failed, the first row that applies decides:
//
//	the machine                                          verdict
//	has a step PowerCycle that runs                      PowerCycle
//	has no check or no Node, is healthy, its Node        Idle
//	reports, or its Node has never reported a boot
//	runs the controllers, or is excluded by an operator  Held
//	has no power switch                                  NoPowerSwitch
//	has a check that repairs no machine at present       TooMany
//	is needed for the quorum                             NoQuorum
//	has a check without a maximum                        Held
//	had a fence that failed less than RetryAfter ago     NotConfirmed
//	must wait, because another machine is in phase       Waiting
//	SwitchOff or Release
//	any other                                            phase SwitchOff begins
func Decide(w World) []Verdict {
	running := ""
	for _, m := range w.Machines {
		if m.Operation.Phase == SwitchOff || m.Operation.Phase == Release {
			running = m.Name
		}
	}
	verdicts := make([]Verdict, len(w.Machines))
	for i, m := range w.Machines {
		var v Verdict
		switch {
		case m.Operation.Phase != "" && m.Operation.Phase != Failed:
			v = w.proceed(i)
		case m.Cycle.Runs():
			v = w.cycle(i)
		default:
			if v = w.begin(i, running); v.Operation.Phase == SwitchOff {
				running = m.Name
			}
		}
		if m.Taint != "" && m.Ready && m.BootID != m.Taint {
			v.Taint = "" // also without an operation, because an operator can remove spec.fence
		}
		verdicts[i] = v
	}
	return verdicts
}

// stay returns the verdict that changes nothing.
func (m Machine) stay(s State, message string) Verdict {
	return Verdict{State: s, Message: message, Operation: m.Operation, Cycle: m.Cycle.Phase, Taint: m.Taint}
}

// enter returns the verdict that begins a phase.
func (m Machine) enter(now time.Time, phase Phase, s State, message string) Verdict {
	v := m.stay(s, message)
	v.Operation.Phase, v.Operation.Since = phase, now
	return v
}

// end returns the verdict that ends the operation, if there is one.
func (m Machine) end(s State, message string) Verdict {
	v := m.stay(s, message)
	v.Operation = Operation{}
	return v
}

// do returns the verdict that operates the power switch. If the controllers cannot operate it, the
// verdict has the reason and no action.
func (m Machine) do(s State, message string, a Action) Verdict {
	if m.Access != "" && s != Cycling {
		s = NoSwitch
	}
	if m.Access != "" {
		return m.stay(s, m.Access)
	}
	v := m.stay(s, message)
	if v.Action = a; m.Reading.Problem != "" {
		v.Message += "; the last request has failed: " + m.Reading.Problem
	}
	return v
}

// reads reports whether the power was read as p within the time Fresh.
func (m Machine) reads(now time.Time, p Power) bool {
	return m.Reading.Power == p && now.Sub(m.Reading.At) <= Fresh
}

// begin returns the verdict about a machine without an operation, or with one in phase Failed.
// running is the machine with an operation in phase SwitchOff or Release; empty if there is none.
func (w World) begin(i int, running string) Verdict {
	m := w.Machines[i]
	if !m.Checked || m.Unhealthy == "" || !m.Exists || !m.Silent || m.BootID == "" {
		return m.end(Idle, "")
	}
	if v, held := w.held(i); held {
		return v
	}
	if m.NoLimit {
		return m.stay(Held, "its MachineHealthCheck has no maximum of unhealthy machines: set spec.remediation.triggerIf (task 120)")
	}
	if m.Operation.Phase == Failed && w.Now.Sub(m.Operation.Since) < RetryAfter {
		return m.stay(Unconfirmed, fmt.Sprintf("its power switch has not reported it as off for %d minutes: %s: check the switch, or %s", GiveUp/time.Minute, cmp.Or(m.Reading.Problem, "it reports it as on"), byHand))
	}
	if running != "" {
		return m.stay(Waiting, "machine "+running+" is fenced at present")
	}
	v := m.enter(w.Now, SwitchOff, SwitchesOff, "its Node does not report")
	v.Operation.BootID = m.BootID
	return v
}

// byHand tells the operator what to do with a lost machine if its power switch does not work.
const byHand = "verify yourself that the machine is off, and then set the taint node.kubernetes.io/out-of-service of its Node (task 87)"

// held returns the verdict about a machine that must not be switched off at present; false if it
// may be switched off.
func (w World) held(i int) (Verdict, bool) {
	m := w.Machines[i]
	switch {
	case m.Own:
		return m.stay(Held, "the leading controllers run on this machine"), true
	case m.Busy != "":
		return m.stay(Held, m.Busy), true
	case m.Access != "":
		return m.stay(NoSwitch, m.Access+"; or "+byHand), true
	case m.Stopped != "":
		return m.stay(TooMany, m.Stopped), true
	}
	if !m.ControlPlane {
		return Verdict{}, false
	}
	all, ready := 0, 0
	for j, other := range w.Machines {
		if !other.ControlPlane {
			continue
		}
		if all++; j != i && other.Available && other.Unhealthy == "" && other.Operation.Phase == "" {
			ready++
		}
	}
	if needed := etcdjoin.QuorumSize(all); ready < needed {
		return m.stay(NoQuorum, fmt.Sprintf("%d other control-plane machines are healthy, and etcd needs %d of %d", ready, needed, all)), true
	}
	return Verdict{}, false
}

// proceed returns the verdict about a machine with an operation. The first row that applies
// decides:
//
//	phase      the machine                                      verdict
//	any        has no Node                                      the operation ends
//	any        is Ready, with a new boot ID                     the operation and the taint end
//	any        is Ready, and its taint has its boot ID          Contradiction
//	SwitchOff  reads Off, and is not Ready                      phase Release
//	SwitchOff  is Ready or healthy, or has no check any more    the operation ends
//	SwitchOff  is in this phase for longer than GiveUp          phase Failed
//	SwitchOff  must not be switched off (any more)              as in Decide
//	SwitchOff  any other                                        is switched off
//	Release    reads On                                         phase SwitchOff, without the taint
//	Release    reads Off, and has no taint                      gets the taint
//	Release    is Ready, and has no taint                       the operation ends
//	Release    has no taint, or pods are left                   its power is read
//	Release    must stay off                                    phase Return
//	Release    any other                                        phase SwitchOn
//	SwitchOn   reads On                                         phase Return
//	SwitchOn   is excluded by an operator                       Held
//	SwitchOn   any other                                        is switched on
//	Return     any                                              StaysOff, Returning or NotReturned
func (w World) proceed(i int) Verdict {
	m := w.Machines[i]
	switch {
	case !m.Exists:
		return m.end(Idle, "")
	case m.Ready && m.BootID != m.Operation.BootID:
		v := m.end(Returned, "")
		v.Taint = ""
		return v
	case m.Ready && m.Taint != "" && m.Taint == m.BootID:
		return m.stay(Contrary, "its power was read as off, and its Node reports without a boot: its pods may run twice; check that the Secret names the controller of this machine, then reboot the machine")
	}
	switch m.Operation.Phase {
	case SwitchOff:
		return w.switchOff(i)
	case Release:
		return m.release(w.Now)
	case SwitchOn:
		if m.reads(w.Now, On) {
			return m.enter(w.Now, Return, Returning, "")
		}
		if m.Busy != "" { // an operator may work at the machine
			return m.stay(Held, m.Busy)
		}
		return m.do(SwitchesOn, "its pods are released", TurnOn)
	}
	switch {
	case m.Operation.StayOff != "":
		return m.stay(StaysOff, m.Operation.StayOff+": switch it on by hand")
	case m.Cycle.Runs():
		return w.cycle(i)
	case w.Now.Sub(m.Operation.Since) > ReturnTime:
		return m.stay(Missing, "it was switched on, and is not Ready: repair the machine, or remove it (task 65)")
	}
	return m.stay(Returning, "it was switched on")
}

// switchOff returns the verdict in phase SwitchOff.
func (w World) switchOff(i int) Verdict {
	m := w.Machines[i]
	switch {
	case m.reads(w.Now, Off) && !m.Ready:
		v := m.enter(w.Now, Release, Releasing, "it is off")
		switch {
		case m.Offline != "":
			v.Operation.StayOff = "pod " + m.Offline + " would start on it without an API server, and so run twice"
		case m.KeepOff:
			v.Operation.StayOff = "spec.power.afterFencing is Off"
		}
		return v
	case m.Ready:
		return m.end(Returned, "")
	case !m.Checked || m.Unhealthy == "":
		return m.end(Idle, "")
	}
	if w.Now.Sub(m.Operation.Since) > GiveUp {
		return m.enter(w.Now, Failed, Unconfirmed, "its power switch has not reported it as off: "+byHand)
	}
	if v, held := w.held(i); held {
		if m.Access == "" {
			v.Action = Read // an earlier request may still switch the machine off
		}
		return v
	}
	return m.do(SwitchesOff, "its Node does not report", TurnOff)
}

// release returns the verdict in phase Release.
func (m Machine) release(now time.Time) Verdict {
	switch {
	case m.reads(now, On):
		v := m.enter(now, SwitchOff, SwitchesOff, "it was switched on before its pods were released")
		v.Taint = ""
		return v
	case m.Taint == "" && m.reads(now, Off) && !m.Ready:
		v := m.do(Releasing, "it is off", Read)
		v.Taint = m.Operation.BootID
		return v
	case m.Taint == "" && m.Ready:
		return m.end(Returned, "")
	case m.Taint == "":
		return m.do(Releasing, "its power is read again", Read)
	case m.Left > 0:
		return m.do(Releasing, fmt.Sprintf("it is off; %d pods are left", m.Left), Read)
	case m.Operation.StayOff != "":
		return m.enter(now, Return, StaysOff, m.Operation.StayOff+": switch it on by hand")
	}
	return m.enter(now, SwitchOn, SwitchesOn, "its pods are released")
}

// cycle returns the verdict about a step PowerCycle. A step that has begun is completed even after
// the expiry of its order, because the machine must not stay off. If the machine must not be
// switched off at present, its power is only read, because an earlier request may still switch the
// machine off.
func (w World) cycle(i int) Verdict {
	m := w.Machines[i]
	next := func(p Phase) Verdict {
		v := m.stay(Cycling, "")
		v.Cycle = p
		return v
	}
	switch {
	case m.Cycle.Phase == SwitchOn && m.reads(w.Now, On):
		return next(Done)
	case m.Cycle.Phase == SwitchOn:
		return m.do(Cycling, "it is switched on again", TurnOn)
	case m.Cycle.Phase == SwitchOff && m.reads(w.Now, Off):
		return next(SwitchOn)
	}
	if v, held := w.held(i); held {
		if v = m.stay(Cycling, cmp.Or(m.Access, v.Message)); m.Cycle.Phase == SwitchOff && m.Access == "" {
			v.Action = Read
		}
		return v
	}
	if m.Cycle.Phase == "" {
		return next(SwitchOff)
	}
	return m.do(Cycling, "it is switched off", TurnOff)
}
