// Package standby decides when the controllers operate the power switch of a host of the inventory
// (docs/decisions/0125-power-of-claims.md). A host is a machine that is no member of the cluster.
//
// A host that a MachineSet has returned passes through these phases:
//
//	phase      the controllers                                           ends when
//	SwitchOff  wait until the machine has erased itself and powers off;  it reads Off
//	           after Grace they switch it off
//	Off        do nothing                                                a MachineSet needs it
//	SwitchOn   switch the machine on, and read its power                 it reads On
//	Boot       wait until the machine reports, and read its power        it reports
//	Reported   do nothing                                                a MachineSet claims it
//
// The decisions follow these rules:
//
//   - A host without a phase is never switched on or off.
//   - An erased machine has a new key, and reports as another host. The new host gets the power
//     switch of the old host only if both state the same UUID, no third host states it, and the
//     power of the machine was read as On.
//   - Each phase is stored before the controllers act on it, and each action can be repeated.
package standby

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
)

const (
	// Grace is how long a returned machine may take to erase its disks and to power off by itself.
	// The controllers do not switch it off before.
	Grace = 10 * time.Minute
	// Patience is how long a machine may take from the order to switch it on until it reports.
	// Afterwards a MachineSet may have another host switched on.
	Patience = 15 * time.Minute
)

// Phase is a phase of a host. The empty phase means that the controllers do not operate the power
// switch.
type Phase string

// The phases.
const (
	SwitchOff Phase = "SwitchOff"
	Off       Phase = "Off"
	SwitchOn  Phase = "SwitchOn"
	Boot      Phase = "Boot"
	Reported  Phase = "Reported"
)

// Operation is the stored state of a host. The zero value means that there is no operation.
type Operation struct {
	Phase Phase
	// Since is the begin of the phase. In phase Boot it is the time of the order to switch on.
	Since time.Time
	// For is the MachineSet for which the machine was switched on; empty in other phases.
	For string
}

// OnTheWay reports whether a MachineSet can expect that the host becomes available: it was switched
// on at most Patience ago, or it has reported and waits for an approval.
func (o Operation) OnTheWay(now time.Time) bool {
	switch o.Phase {
	case SwitchOn, Boot:
		return now.Sub(o.Since) <= Patience
	case Reported:
		return true
	}
	return false
}

// Host is what the controllers know about a host with a power switch.
type Host struct {
	Operation
	Claimed bool // a MachineSet has claimed the host
	Waiting bool // the machine sends its inventory
	// Twins is the number of other waiting hosts that state the same UUID and have no power switch.
	Twins int
	// Succeeded means that another waiting host has the same UUID and the same power switch.
	Succeeded bool
	fence.Switch
}

// Verdict is the decision about a host.
type Verdict struct {
	// Operation is the state to store. If it differs from the stored state, Action is not TurnOff
	// or TurnOn.
	Operation Operation
	Action    fence.Action
	// Reason and Message describe the state for operators. Both are empty if the host waits or has
	// no operation.
	Reason, Message string
	// Equip means that the only twin is the same machine and gets the power switch.
	Equip bool
	// Obsolete means that another host describes the machine now, so this object can be deleted.
	Obsolete bool
}

// Reads reports whether the decision depends on the power switch of the host.
func (h Host) Reads() bool {
	if h.Claimed || h.Waiting || h.Succeeded {
		return false
	}
	switch h.Phase {
	case SwitchOff, SwitchOn, Boot:
		return true
	}
	return h.Twins > 0
}

// Decide returns the verdict about a host. The first row that applies decides:
//
//	phase      the host                             verdict
//	any        is claimed                           the operation ends
//	any        waits, and was switched on for a     phase Reported
//	           MachineSet
//	any        waits                                the operation ends
//	any        has a successor                      the object is obsolete
//	none, Off  has a twin, and reads On             phase Boot
//	none, Off  has a twin                           its power is read
//	Off        any other                            nothing
//	SwitchOff  reads Off                            phase Off
//	SwitchOff  is in this phase for up to Grace     its power is read
//	SwitchOff  any other                            is switched off
//	SwitchOn   reads On                             phase Boot
//	SwitchOn   any other                            is switched on
//	Boot       reads Off                            phase SwitchOn
//	Boot       reads On, and has one twin           the twin gets the power switch
//	Boot       any other                            its power is read
//	Reported   does not wait any more               the operation ends
func Decide(now time.Time, h Host) Verdict {
	stay := Verdict{Operation: h.Operation}
	switch {
	case h.Claimed:
		return Verdict{}
	case h.Waiting && h.For != "":
		return h.enter(now, Reported)
	case h.Waiting:
		return Verdict{}
	case h.Succeeded:
		stay.Obsolete = true
		return stay
	}
	switch h.Phase {
	case SwitchOff:
		return h.switchOff(now)
	case SwitchOn:
		return h.switchOn(now)
	case Boot:
		return h.boot(now)
	case Reported:
		return Verdict{}
	}
	if h.Phase == Off {
		stay.Reason, stay.Message = "Off", "the machine is off: a MachineSet that needs it has it switched on"
	}
	if h.Twins == 0 {
		return stay
	}
	if h.reads(now, fence.On) { // it was switched on by hand
		return h.enter(now, Boot)
	}
	return h.do(stay, stay.Reason, "another host states the same UUID, and the power of this machine is not read as on", fence.Read)
}

// reads reports whether the power was read as p within the time fence.Fresh.
func (h Host) reads(now time.Time, p fence.Power) bool {
	return h.Reading.Power == p && now.Sub(h.Reading.At) <= fence.Fresh
}

// enter is the verdict that begins a phase. Phases that follow each other for a MachineSet keep the
// time of its order.
func (h Host) enter(now time.Time, p Phase) Verdict {
	next := Operation{Phase: p, Since: now}
	switch p {
	case SwitchOn, Boot:
		if next.For = h.For; h.Phase == SwitchOn || h.Phase == Boot {
			next.Since = h.Since
		}
	case Reported:
		if next.For = h.For; h.Phase == Reported {
			next.Since = h.Since
		}
	}
	return Verdict{Operation: next, Reason: reasons[p]}
}

// reasons are the words for the phases in the condition of a host.
var reasons = map[Phase]string{SwitchOff: "SwitchingOff", Off: "Off", SwitchOn: "SwitchingOn", Boot: "Booting"}

// do completes a verdict that asks the power switch.
func (h Host) do(v Verdict, reason, message string, a fence.Action) Verdict {
	v.Reason, v.Message, v.Action = reason, message, a
	switch {
	case h.Access != "":
		v.Reason, v.Message, v.Action = "NoPowerSwitch", h.Access, fence.Nothing
	case h.Reading.Problem != "":
		v.Message += "; the last request has failed: " + h.Reading.Problem
	}
	return v
}

func (h Host) switchOff(now time.Time) Verdict {
	v := Verdict{Operation: h.Operation}
	if h.reads(now, fence.Off) {
		return h.enter(now, Off)
	}
	if now.Sub(h.Since) <= Grace {
		return h.do(v, reasons[SwitchOff], "the machine has left the cluster, erases its disks and powers off", fence.Read)
	}
	return h.do(v, reasons[SwitchOff], fmt.Sprintf("the machine has not powered off within %d minutes, so it is switched off", Grace/time.Minute), fence.TurnOff)
}

func (h Host) switchOn(now time.Time) Verdict {
	if h.reads(now, fence.On) {
		return h.enter(now, Boot)
	}
	return h.late(now, h.do(Verdict{Operation: h.Operation}, reasons[SwitchOn], "MachineSet "+h.For+" needs the machine", fence.TurnOn))
}

func (h Host) boot(now time.Time) Verdict {
	if h.reads(now, fence.Off) { // it has ended its erasure
		return h.enter(now, SwitchOn)
	}
	v := h.do(Verdict{Operation: h.Operation}, reasons[Boot], "the machine is on, and has not reported yet", fence.Read)
	switch {
	case h.Twins > 1:
		v.Message = fmt.Sprintf("%d hosts state the UUID of this machine: compare their fingerprints with its console, and set spec.power of the right one", h.Twins)
	case h.Twins == 1 && h.Access == "" && h.reads(now, fence.On):
		v.Equip = true
	}
	return h.late(now, v)
}

// late changes the reason of a host that has not reported in time.
func (h Host) late(now time.Time, v Verdict) Verdict {
	if now.Sub(h.Since) > Patience && v.Reason != "NoPowerSwitch" {
		v.Reason, v.Message = "NotReported", fmt.Sprintf("the machine was to be switched on more than %d minutes ago, and does not report: %s; see its console", Patience/time.Minute, v.Message)
	}
	return v
}
