// Package standby decides when the controllers operate the power switch of a host of the inventory
// (docs/decisions/0125-power-of-claims.md). A host is a machine that is no member of the cluster.
//
// A host that a MachineSet has returned passes through these phases:
//
//	phase      the controllers                                           ends when
//	SwitchOff  wait until the machine has erased itself and powers off;  it reads Off
//	           after Grace they switch it off
//	Unerased   do nothing: the configuration of the machine keeps its    the machine waits
//	           data
//	Off        do nothing                                                a MachineSet needs it
//	SwitchOn   switch the machine on, and read its power                 it reads On
//	Boot       wait until the machine reports, and read its power        it reports
//	Reported   do nothing                                                a MachineSet claims it
//	Surplus    wait; after Grace they switch it off, because the         it reads Off, or a
//	           MachineSet for which it runs does not need it any more    MachineSet needs it
//
// The decisions follow these rules:
//
//   - A host without a phase is never switched on or off.
//   - A host is not operated while a member of the cluster may be the same machine.
//   - A machine that erases itself is not switched off before Grace has ended. It is not switched
//     off while another host states its UUID, because it may have another key now.
//   - An erased machine has a new key, and reports as another host, its twin. The twin gets the
//     power switch of the host only if both state the same UUID, no third host states it, the
//     object of the twin is younger than the order or the phase, and the power of the machine was
//     read as On.
//   - Each phase is stored before the controllers act on it, and each action can be repeated.
package standby

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
)

const (
	// Grace is how long a returned machine may take to erase its disks and to power off by itself.
	// It is also how long a machine stays on that no MachineSet needs any more. The controllers do
	// not switch it off before.
	Grace = 10 * time.Minute
	// Patience is how long a machine may take from the order to switch it on until it reports.
	// Afterwards another host may be switched on for the MachineSet.
	Patience = 15 * time.Minute
)

// Phase is a phase of a host. The empty phase means that the controllers do not operate the power
// switch.
type Phase string

// The phases.
const (
	SwitchOff Phase = "SwitchOff"
	Unerased  Phase = "Unerased"
	Off       Phase = "Off"
	SwitchOn  Phase = "SwitchOn"
	Boot      Phase = "Boot"
	Reported  Phase = "Reported"
	Surplus   Phase = "Surplus"
)

// Operation is the stored state of a host. The zero value means that there is no operation.
type Operation struct {
	Phase Phase
	// Since is the begin of the phase. In phases SwitchOn and Boot it is the time of the order to
	// switch on.
	Since time.Time
	// For is the MachineSet for which the machine was switched on; empty in other phases.
	For string
	// Unconfirmed means that the machine may still have the data and the keys of a member: it was
	// lost before its removal, or the controllers have switched it off. The machine that reports
	// without a configuration ends this.
	Unconfirmed bool
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
	// InUse names the member of the cluster, or the claimed host, that states the same UUID or has
	// the same controller (BMC). It is also set while these are unknown. Empty if there is none.
	InUse string
	Seen  time.Time // the last message of the machine under this key
	// Twins is the number of other waiting hosts that state the same UUID and have no power switch.
	// Twin is the time of the creation of the only twin; the zero time if there are several.
	Twins int
	Twin  time.Time
	// Others is the number of all other hosts that state the same UUID, for example silent hosts.
	Others int
	// Succeeded means that another host that waits or is claimed has the same UUID and the same
	// power switch.
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
	if h.Claimed || h.Succeeded || h.InUse != "" {
		return false
	}
	switch h.Phase {
	case Surplus:
		return true
	case SwitchOff, SwitchOn, Boot:
		return !h.Waiting
	}
	return !h.Waiting && h.Twins > 0
}

// Decide returns the verdict about a host. The first row that applies decides:
//
//	phase           the host                         verdict
//	any             is claimed                       the operation ends
//	any             has a successor                  the object is obsolete
//	any             is in use                        nothing
//	Surplus         reads Off                        phase Off
//	Surplus         another host states its UUID     its power is read
//	Surplus         is in this phase up to Grace     its power is read
//	Surplus         any other                        is switched off
//	any other       waits, and was switched on for   phase Reported
//	                a MachineSet
//	any other       waits                            the operation ends
//	none, Off,      has one twin that is younger     the twin gets the power switch
//	Unerased        than the phase, and reads On
//	none, Off,      has a twin                       its power is read
//	Unerased
//	Off, Unerased   any other                        nothing
//	SwitchOff       reads Off                        phase Off
//	SwitchOff       another host states its UUID     its power is read
//	SwitchOff       is in this phase up to Grace     its power is read
//	SwitchOff       is not marked as unconfirmed     is marked
//	SwitchOff       any other                        is switched off
//	SwitchOn        reads On                         phase Boot
//	SwitchOn        any other                        is switched on
//	Boot            reads Off                        phase SwitchOn
//	Boot            reads On, and has one twin that  the twin gets the power switch
//	                is younger than the order
//	Boot            any other                        its power is read
//	Reported        does not wait any more           the operation ends
func Decide(now time.Time, h Host) Verdict {
	stay := Verdict{Operation: h.Operation}
	switch {
	case h.Claimed:
		return Verdict{}
	case h.Succeeded:
		stay.Obsolete = true
		return stay
	case h.InUse != "":
		if h.Phase != "" {
			stay.Reason, stay.Message = "InUse", h.InUse+": the power switch is not operated"
		}
		return stay
	case h.Phase == Surplus:
		return h.surplus(now)
	case h.Waiting && h.For != "":
		return h.enter(now, Reported)
	case h.Waiting:
		return Verdict{}
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
	return h.rest(now)
}

// reads reports whether the power was read as p within the time fence.Fresh.
func (h Host) reads(now time.Time, p fence.Power) bool {
	return h.Reading.Power == p && now.Sub(h.Reading.At) <= fence.Fresh
}

// enter is the verdict that begins a phase. Phases that follow each other for a MachineSet keep the
// time of its order.
func (h Host) enter(now time.Time, p Phase) Verdict {
	next := Operation{Phase: p, Since: now, Unconfirmed: h.Unconfirmed}
	switch p {
	case SwitchOn, Boot:
		if next.For = h.For; h.Phase == SwitchOn || h.Phase == Boot {
			next.Since = h.Since
		}
	case Reported:
		next.Unconfirmed = false
		if next.For = h.For; h.Phase == Reported {
			next.Since = h.Since
		}
	}
	return Verdict{Operation: next, Reason: next.reason()}
}

// reason returns the word for the phase in the condition of a host.
func (o Operation) reason() string {
	if o.Phase == Off && o.Unconfirmed {
		return "ErasureNotConfirmed"
	}
	return reasons[o.Phase]
}

// reasons are the words for the phases in the condition of a host.
var reasons = map[Phase]string{SwitchOff: "SwitchingOff", Unerased: "NotErased", Off: "Off", SwitchOn: "SwitchingOn", Boot: "Booting", Surplus: "NotNeeded"}

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

// twin adds the verdict about the twins of a host to v. after is the time after which the object of
// the same machine with another key was created.
func (h Host) twin(now time.Time, v Verdict, after time.Time) Verdict {
	switch {
	case h.Twins+h.Others > 1:
		v.Message = fmt.Sprintf("%d other hosts state the UUID of this machine: compare their fingerprints with its console, set spec.power of the right one, and delete the others", h.Twins+h.Others)
	case h.Twins == 1 && !h.Twin.After(after):
		v.Message = "a host that is older than the present phase states the UUID of this machine: compare its fingerprint with the console, and set its spec.power if it is this machine"
	case h.Twins == 1 && h.Access == "":
		v.Equip = h.reads(now, fence.On)
	}
	return v
}

// rest is the verdict about a host that is off, keeps its data, or has no phase.
func (h Host) rest(now time.Time) Verdict {
	v, after := Verdict{Operation: h.Operation, Reason: h.reason()}, h.Since
	switch {
	case h.Phase == Unerased:
		v.Message = "the machine has left the cluster, and keeps its data, because its template does not have onRemoval: Wipe. Its power is not changed: reset it (orlopctl reset)"
	case h.Phase != Off:
		after = h.Seen
	case h.Unconfirmed:
		v.Message = "the machine is off, and can still have the data and keys of a member. It erases itself at its next boot: do not give its disks away before"
	default:
		v.Message = "the machine is off: it is switched on when a MachineSet needs it"
	}
	if h.Twins == 0 {
		return v
	}
	return h.twin(now, h.do(v, v.Reason, "another host states the same UUID, and the power of this machine is not read as on", fence.Read), after)
}

// stop is the verdict about a host that is switched off after Grace. why and late are the messages
// before and after Grace.
func (h Host) stop(now time.Time, why, late string) Verdict {
	v := Verdict{Operation: h.Operation}
	switch {
	case h.reads(now, fence.Off):
		return h.enter(now, Off)
	case h.Twins+h.Others > 0:
		return h.do(v, reasons[h.Phase], "another host states the same UUID, and can be this machine, so it is not switched off: compare the fingerprint with the console, and set spec.power of the right one", fence.Read)
	case now.Sub(h.Since) <= Grace:
		return h.do(v, reasons[h.Phase], why, fence.Read)
	}
	return h.do(v, reasons[h.Phase], late, fence.TurnOff)
}

func (h Host) switchOff(now time.Time) Verdict {
	v := h.stop(now, "the machine has left the cluster, erases its disks and powers off",
		fmt.Sprintf("the machine has not powered off within %d minutes, so it is switched off", Grace/time.Minute))
	if v.Action == fence.TurnOff && !h.Unconfirmed { // the erasure may be cut off
		v.Action, v.Operation.Unconfirmed = fence.Read, true
	}
	return v
}

func (h Host) surplus(now time.Time) Verdict {
	return h.stop(now, "no MachineSet needs the machine any more", "no MachineSet needs the machine any more, so it is switched off")
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
	if h.Twins > 0 {
		v = h.twin(now, v, h.Since)
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
