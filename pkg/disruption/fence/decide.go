package fence

import (
	"cmp"
	"fmt"
	"slices"
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
	Contrary    State = "Contradiction" // phase Refuted
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
// returned yet. It is false in the phases SwitchOn and Return of a fence that has set no taint.
func (v Verdict) Off() bool {
	switch v.Operation.Phase {
	case Release:
		return true
	case SwitchOn, Return:
		return v.Taint != "" || v.Operation.StayOff != ""
	}
	return false
}

// Busy returns the reason why a repair gives the machine no order at present; empty if it may give
// one.
func (v Verdict) Busy() string {
	phases, states := []Phase{SwitchOff, Release, SwitchOn, Refuted}, []State{Waiting, StaysOff, Returning}
	if slices.Contains(phases, v.Operation.Phase) || slices.Contains(states, v.State) {
		return "the machine is fenced: " + string(v.State)
	}
	return ""
}

// Decide returns a verdict for each machine, in the order of the machines. For a machine without an
// operation, or with one in phase Failed, the first row that applies decides:
//
//	the machine                                          verdict
//	has a step PowerCycle that runs                      PowerCycle; see cycle
//	has no check, is healthy, its Node reports, or its   Idle; phase SwitchOn if it has failed
//	Node has never reported a boot
//	runs the controllers, or is excluded by an operator  Held
//	has a check without a maximum                        Held
//	has no power switch                                  NoPowerSwitch
//	has a check that repairs no machine at present       TooMany
//	is needed for the quorum                             NoQuorum
//	had a fence that failed less than RetryAfter ago     NotConfirmed
//	must wait, because another machine is in phase       Waiting
//	SwitchOff or Release
//	any other                                            phase SwitchOff begins
//
// A step PowerCycle that is late does not prevent a fence, if the machine was not switched on again
// and its Node does not report.
//
// The taint of a Node is removed in the phases SwitchOff, Failed and Refuted, and when the Node is
// Ready with another boot ID.
func Decide(w World) []Verdict {
	running, cloned := "", false
	for i := range w.Machines {
		m := &w.Machines[i]
		if m.Operation.Phase == SwitchOff || m.Operation.Phase == Release {
			running = m.Name
		}
		// A leader with a wrong clock has stored this time. Without the correction, the deadlines
		// of the phase would not end before that time.
		if m.Operation.Since.After(w.Now) {
			if !cloned {
				w.Machines, cloned = slices.Clone(w.Machines), true
			}
			w.Machines[i].Operation.Since, w.Machines[i].corrected = w.Now, true
		}
	}
	verdicts := make([]Verdict, len(w.Machines))
	for i, m := range w.Machines {
		v := w.verdict(i, running)
		if v.Operation.Phase == SwitchOff {
			running = m.Name
		}
		// An operator can remove spec.fence, so this also applies without an operation.
		returned := m.Ready && m.BootID != m.Taint
		if returned || slices.Contains([]Phase{SwitchOff, Failed, Refuted}, v.Operation.Phase) {
			v.Taint = ""
		}
		if m.corrected && v.Action != Nothing {
			v.Action = Read // the corrected operation is stored first
		}
		verdicts[i] = v
	}
	return verdicts
}

// verdict returns the verdict about a machine. running is the machine with an operation in phase
// SwitchOff or Release; empty if there is none.
func (w World) verdict(i int, running string) Verdict {
	m := w.Machines[i]
	switch {
	case m.Operation.Phase != "" && m.Operation.Phase != Failed:
		return w.proceed(i)
	case !m.Cycle.Runs():
		return w.begin(i, running)
	case m.Cycle.Phase == SwitchOn && m.Silent && w.late(m.Cycle):
		if v := w.begin(i, running); v.Operation.Phase == SwitchOff {
			return v
		}
	}
	return w.cycle(i)
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
		if m.Operation.Phase == Failed {
			return m.leave(w.Now)
		}
		return m.end(Idle, "")
	}
	if v, held := w.held(i); held {
		return v
	}
	if m.Operation.Phase == Failed && w.Now.Sub(m.Operation.Since) < RetryAfter {
		return m.stay(Unconfirmed, fmt.Sprintf("its power switch has not confirmed for %d minutes that it is off: %s: check the switch, or %s", GiveUp/time.Minute, m.lastAnswer(), byHand))
	}
	if running != "" {
		return m.stay(Waiting, "machine "+running+" is fenced at present")
	}
	v := m.enter(w.Now, SwitchOff, SwitchesOff, "its Node does not report")
	v.Operation.BootID = m.BootID
	return v
}

// lastAnswer returns the last answer of the power switch, for operators.
func (m Machine) lastAnswer() string {
	switch {
	case m.Reading.Problem != "":
		return m.Reading.Problem
	case m.Reading.Power == "":
		return "these controllers have no answer of it yet"
	}
	return "its last answer is " + string(m.Reading.Power)
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
	case m.NoLimit:
		return m.stay(Held, "its MachineHealthCheck has no maximum of unhealthy machines: set spec.remediation.triggerIf (task 120)"), true
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
		if all++; j != i && other.Available && other.Unhealthy == "" && other.Operation.Phase == "" && !other.Cycle.Runs() {
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
//	SwitchOff  reads Off, is Silent, has the old boot ID, and   phase Release
//	           its pods were read
//	SwitchOff  has no Node or no check, is healthy, or is not   leaves the fence
//	           Silent
//	SwitchOff  is in this phase for longer than GiveUp          phase Failed
//	SwitchOff  must not be switched off (any more)              as in Decide
//	SwitchOff  any other                                        is switched off
//	any other  has the taint, and its Node reports with the     phase Refuted
//	           old boot ID
//	Release    has no Node                                      leaves the fence
//	Release    is Ready, with a new boot ID                     the operation and the taint end
//	Release    reads On                                         phase SwitchOff, without the taint
//	Release    its Node reports with a new boot ID              leaves the fence; the taint ends
//	Release    has no taint, and is not Silent                  leaves the fence
//	Release    has no taint, and reads Off                      gets the taint
//	Release    has no taint for longer than GiveUp              phase Failed
//	Release    has no taint, or pods are left or were not read  its power is read
//	Release    must stay off                                    phase Return
//	Release    any other                                        phase SwitchOn
//	SwitchOn   is Ready with a new boot ID, and has the taint   the operation and the taint end
//	SwitchOn   reads On, and has the taint                      phase Return
//	SwitchOn   reads On, and is in this phase for Settle        the operation ends
//	SwitchOn   has no taint, and is Ready for longer than       the operation ends
//	           GiveUp
//	SwitchOn   is excluded by an operator                       Held; its power is read
//	SwitchOn   any other                                        is switched on
//	Return     has no Node                                      the operation ends
//	Return     is Ready, with a new boot ID or without taint    the operation and the taint end
//	Return     must stay off                                    StaysOff
//	Return     has a step PowerCycle that runs                  PowerCycle; see cycle
//	Return     is in this phase for longer than ReturnTime      NotReturned
//	Return     reads Off                                        phase SwitchOn
//	Return     any other                                        Returning; its power is read
//	Refuted    has no Node, or is Ready with a new boot ID      the operation ends
//	Refuted    any other                                        Contradiction
//
// To leave the fence is to begin phase SwitchOn, because an earlier request can still switch the
// machine off. A machine that must stay off enters phase Return instead, and the operation ends if
// its Node reports.
func (w World) proceed(i int) Verdict {
	m := w.Machines[i]
	if m.Operation.Phase == SwitchOff {
		return w.switchOff(i)
	}
	if m.Operation.Phase != Refuted && m.Taint != "" && m.Reports && m.BootID == m.Operation.BootID {
		return m.enter(w.Now, Refuted, Contrary, contrary)
	}
	switch m.Operation.Phase {
	case Release:
		return m.release(w.Now)
	case SwitchOn:
		return m.switchOn(w.Now)
	case Refuted:
		return m.refuted(w.Now)
	}
	switch {
	case !m.Exists:
		return m.end(Idle, "")
	case m.returned(), m.Ready && m.Taint == "":
		return m.home()
	case m.Operation.StayOff != "":
		return m.stay(StaysOff, m.Operation.StayOff+": switch it on by hand")
	case m.Cycle.Runs():
		return w.cycle(i)
	case w.Now.Sub(m.Operation.Since) > ReturnTime:
		return m.stay(Missing, "it was switched on, and is not Ready: repair the machine, or remove it (task 65)")
	case m.reads(w.Now, Off):
		return m.enter(w.Now, SwitchOn, SwitchesOn, "it was switched off again")
	case m.Access != "":
		return m.stay(Returning, m.Access)
	}
	return m.do(Returning, "it was switched on", Read)
}

// returned reports whether the machine is Ready after a boot that followed the begin of the fence.
func (m Machine) returned() bool { return m.Ready && m.BootID != m.Operation.BootID }

// home returns the verdict that ends the operation of a machine that is back.
func (m Machine) home() Verdict {
	v := m.end(Returned, "")
	v.Taint = ""
	return v
}

// leave returns the verdict that ends a fence before its pods are released. An earlier request can
// still switch the machine off, so the machine is switched on first.
func (m Machine) leave(now time.Time) Verdict {
	switch {
	case m.Operation.StayOff == "":
		return m.enter(now, SwitchOn, SwitchesOn, "it is not fenced any more")
	case m.Reports || !m.Exists:
		return m.end(Idle, "")
	}
	return m.enter(now, Return, StaysOff, m.Operation.StayOff+": switch it on by hand")
}

// switchOff returns the verdict in phase SwitchOff.
func (w World) switchOff(i int) Verdict {
	m := w.Machines[i]
	lost := m.Silent && m.BootID == m.Operation.BootID
	if lost && m.reads(w.Now, Off) {
		if !m.Read {
			return m.do(SwitchesOff, "it is off; its pods are read", Read)
		}
		v := m.enter(w.Now, Release, Releasing, "it is off")
		switch {
		case m.Offline != "":
			v.Operation.StayOff = "pod " + m.Offline + " would start on it without an API server, and so run twice"
		case m.KeepOff:
			v.Operation.StayOff = "spec.power.afterFencing is Off"
		}
		return v
	}
	if !lost || !m.Checked || m.Unhealthy == "" {
		return m.leave(w.Now)
	}
	why, held := w.held(i)
	switch {
	case w.Now.Sub(m.Operation.Since) <= GiveUp:
	case held:
		return m.enter(w.Now, Failed, why.State, why.Message)
	default:
		return m.enter(w.Now, Failed, Unconfirmed, "its power switch has not confirmed that it is off: "+byHand)
	}
	if held {
		if m.Access == "" {
			why.Action = Read // an earlier request may still switch the machine off
		}
		return why
	}
	return m.do(SwitchesOff, "its Node does not report", TurnOff)
}

// release returns the verdict in phase Release.
func (m Machine) release(now time.Time) Verdict {
	switch {
	case !m.Exists:
		return m.leave(now)
	case m.returned():
		return m.home()
	case m.reads(now, On):
		return m.enter(now, SwitchOff, SwitchesOff, "it was switched on before its pods were released")
	case m.Reports && m.BootID != m.Operation.BootID, m.Taint == "" && !m.Silent:
		v := m.leave(now)
		v.Taint = ""
		return v
	case m.Taint == "" && m.reads(now, Off) && m.BootID == m.Operation.BootID:
		v := m.do(Releasing, "it is off", Read)
		v.Taint = m.Operation.BootID
		return v
	case m.Taint == "" && now.Sub(m.Operation.Since) > GiveUp:
		return m.enter(now, Failed, Unconfirmed, "its power switch does not confirm any more that it is off: "+byHand)
	case m.Taint == "":
		return m.do(Releasing, "its power is read again", Read)
	case !m.Read:
		return m.do(Releasing, "it is off; its pods are read", Read)
	case m.Left > 0:
		return m.do(Releasing, fmt.Sprintf("it is off; %d pods are left", m.Left), Read)
	case m.Operation.StayOff != "":
		return m.enter(now, Return, StaysOff, m.Operation.StayOff+": switch it on by hand")
	}
	return m.enter(now, SwitchOn, SwitchesOn, "its pods are released")
}

// switchOn returns the verdict in phase SwitchOn.
func (m Machine) switchOn(now time.Time) Verdict {
	switch {
	case m.Taint != "" && m.returned():
		return m.home()
	case m.reads(now, On) && m.Taint != "":
		return m.enter(now, Return, Returning, "")
	case m.reads(now, On) && now.Sub(m.Operation.Since) >= Settle, m.Taint == "" && m.Ready && now.Sub(m.Operation.Since) > GiveUp:
		return m.end(Idle, "")
	case m.Busy != "" && m.Access == "": // an operator may work at the machine
		v := m.stay(Held, m.Busy)
		v.Action = Read
		return v
	}
	return m.do(SwitchesOn, "it is switched on again", TurnOn)
}

// contrary is the message of a machine whose power was read as Off while it ran.
const contrary = "its power was read as off, and its Node reports without a boot: its pods may have run twice; check that the Secret names the controller of this machine, then reboot the machine"

// refuted returns the verdict in phase Refuted. The machine is also switched on, because the late
// report of a machine that is off looks like the report of a running machine.
func (m Machine) refuted(now time.Time) Verdict {
	switch {
	case !m.Exists:
		return m.end(Idle, "")
	case m.returned():
		return m.home()
	case m.Access != "", m.Busy != "", m.Operation.StayOff != "", m.reads(now, On), now.Sub(m.Operation.Since) > ReturnTime:
		return m.stay(Contrary, contrary)
	}
	return m.do(Contrary, contrary, TurnOn)
}

// late reports whether a step was given so long ago that a fence and a repair may follow, although
// the power switch has not confirmed it. A step of a clock that is minutes ahead is late, too.
func (w World) late(c Cycle) bool {
	age := w.Now.Sub(c.Given)
	return age > ReturnTime || age < -time.Minute
}

// cycle returns the verdict about a step PowerCycle. The first row that applies decides:
//
//	phase      the machine                                verdict
//	SwitchOn   reads On, or reports, and the step is late phase Done
//	SwitchOn   is excluded by an operator                 its power is read
//	SwitchOn   any other                                  is switched on
//	SwitchOff  reads Off, has recovered, or is late       phase SwitchOn
//	SwitchOff  must not be switched off (any more)        its power is read
//	SwitchOff  any other                                  is switched off
//	-          has recovered, or must not be switched     nothing
//	           off
//	-          any other                                  phase SwitchOff
//
// A machine has recovered if it is healthy, has no check, or has no Node. In phase SwitchOn, it is
// switched on even if it has recovered, because an earlier request can still switch it off.
func (w World) cycle(i int) Verdict {
	m := w.Machines[i]
	next := func(p Phase) Verdict {
		v := m.stay(Cycling, "")
		v.Cycle = p
		return v
	}
	hold := func(message string, began bool) Verdict {
		v := m.stay(Cycling, message)
		if began && m.Access == "" {
			v.Action = Read
		}
		return v
	}
	recovered := !m.Checked || m.Unhealthy == "" || !m.Exists
	switch {
	case m.Cycle.Phase == SwitchOn && (m.reads(w.Now, On) || m.Reports && w.late(m.Cycle)):
		return next(Done)
	case m.Cycle.Phase == SwitchOn && m.Busy != "":
		return hold(cmp.Or(m.Access, m.Busy), true)
	case m.Cycle.Phase == SwitchOn:
		return m.do(Cycling, "it is switched on again", TurnOn)
	case m.Cycle.Phase == SwitchOff && (m.reads(w.Now, Off) || recovered || w.late(m.Cycle)):
		return next(SwitchOn)
	case recovered:
		return hold("it has recovered", false)
	}
	if v, held := w.held(i); held {
		return hold(cmp.Or(m.Access, v.Message), m.Cycle.Phase == SwitchOff)
	}
	if m.Cycle.Phase == "" {
		return next(SwitchOff)
	}
	return m.do(Cycling, "it is switched off", TurnOff)
}
