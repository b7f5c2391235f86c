package fence

import "time"

const (
	// Silence is the minimum time since the kubelet last renewed the Lease of its Node, before a
	// fence begins. A healthy kubelet renews the Lease every 10 seconds.
	Silence = time.Minute
	// Fresh is the maximum age of a reading of the power on which a decision relies. It is shorter
	// than the boot of a machine, so a machine that was switched on meanwhile runs no pods yet.
	Fresh = 20 * time.Second
	// ReturnTime is how long a machine may take from the switch-on until it is Ready. After this
	// time, the verdict asks for an operator, and a repair may give the machine orders again.
	ReturnTime = 15 * time.Minute
	// GiveUp is how long a power switch may take to report the machine as off. After this time, the
	// fence fails, so that another machine can be fenced. The failed fence begins again after
	// RetryAfter.
	GiveUp     = 10 * time.Minute
	RetryAfter = 5 * time.Minute
	// Settle is the time for which the controllers continue to switch a machine on after its fence
	// has ended early. It is longer than a request takes, so an earlier request cannot switch the
	// machine off afterwards.
	Settle = 3 * time.Minute
)

// Power is the power state of a machine.
type Power string

// The power states. An empty Power means that the power was not read yet.
const (
	On      Power = "on"
	Off     Power = "off"
	Unclear Power = "unclear" // changing between on and off, or unknown
)

// Reading is the last power that a power switch has reported.
type Reading struct {
	Power Power
	At    time.Time // when the request that returned Power was sent
	// Problem is the reason why the last request failed; empty if it did not fail. If it failed,
	// Power and At are from an earlier request.
	Problem string
}

// Phase is a phase of a fence or of a power cycle. The empty phase means that nothing runs.
type Phase string

// The phases. A fence has the first four phases, in this order. It changes from SwitchOff to Failed
// if SwitchOff takes longer than GiveUp. It changes to Refuted if the machine has the taint, but
// was running all the time. Refuted ends with a reboot. A power cycle has the phases SwitchOff,
// SwitchOn and Done.
const (
	SwitchOff Phase = "SwitchOff"
	Release   Phase = "Release"
	SwitchOn  Phase = "SwitchOn"
	Return    Phase = "Return"
	Failed    Phase = "Failed"
	Refuted   Phase = "Refuted"
	Done      Phase = "Done"
)

// Operation is the stored state of a fence. The zero value means that no fence runs.
type Operation struct {
	Phase  Phase
	Since  time.Time // begin of the phase
	BootID string    // boot ID that the Node had before the fence
	// StayOff is the reason why the controllers do not switch the machine on again; empty if they
	// do.
	StayOff string
}

// Cycle is the step PowerCycle of a repair. The zero value means that there is no such step.
type Cycle struct {
	Given time.Time // when the repair gave the order
	Valid bool      // the step may begin now
	Phase Phase     // the stored phase; empty if the step has not begun
}

// Runs reports whether the step has begun and has not ended, or whether it may begin now.
func (c Cycle) Runs() bool {
	return !c.Given.IsZero() && (c.Phase == SwitchOff || c.Phase == SwitchOn || c.Phase == "" && c.Valid)
}

// Machine is what the controllers know about a machine.
type Machine struct {
	Name         string
	ControlPlane bool
	Own          bool // the leading controllers, which decide, run on this machine

	Care
	Node
	Switch
	Pods

	Operation Operation
	Cycle     Cycle

	corrected bool // Decide has corrected Operation.Since
}

// Care is the result of the health check of a machine.
type Care struct {
	Checked bool // a check covers the machine
	// Unhealthy is the reason why the check finds the machine unhealthy; empty if it does not.
	Unhealthy string
	// Available means that the Node is ready, that its kubelet has renewed the Lease a moment ago,
	// that the checks of the machine itself pass, and that it does not change its release.
	Available bool
	// Stopped is the reason why the check repairs no machine at present, for example because too
	// many machines are unhealthy. Busy is the reason why an operator has excluded this machine.
	// Each is empty if there is no such reason.
	Stopped, Busy string
	// NoLimit means that the check states no maximum of unhealthy machines. No machine of such a
	// check is fenced, because a failure of the network would fence all of them, one after another.
	NoLimit bool
}

// Node is the state of the Node of a machine.
type Node struct {
	Exists bool
	Ready  bool // condition Ready is True
	// Reports means that condition Ready is True or False. Both values are reports of the kubelet.
	Reports bool
	// Silent means that condition Ready is Unknown, and that the Lease was not renewed for the time
	// Silence.
	Silent bool
	BootID string
	// Taint is the boot ID in the taint of a fence; empty if the Node does not have this taint.
	Taint string
}

// Switch is the power switch of a machine.
type Switch struct {
	// Access is the reason why the controllers cannot operate the power switch, with the remedy;
	// empty if they can.
	Access  string
	Reading Reading
	// KeepOff means that, by the configuration of an operator, the machine stays off after a fence.
	KeepOff bool
}

// Pods are the pods of a Node that a fence releases.
type Pods struct {
	// Read means that the pods were read. Otherwise the other fields have no meaning.
	Read bool
	Left int // number of the pods that are not deleted yet
	// Offline is the name of one of the pods that would start after a boot even without an API
	// server; empty if there is no such pod.
	Offline string
}

// World is the input of Decide.
type World struct {
	Now      time.Time
	Machines []Machine
}
