// Package machineprovider defines the interface to the power switch of a machine. The switch
// belongs to a management controller (BMC), a virtualization host or a cloud. docs/providers.md
// explains how to write an implementation, and package providertest checks an implementation.
//
// Package redfish is the implementation for physical machines and for the virtual machines of
// package vm.
package machineprovider

import (
	"context"
	"errors"
	"fmt"
)

// Machine operates the power switch, the boot device and the CD drive of a single machine.
//
// The methods can be called concurrently. A method returns at the latest when its context ends, or
// when the deadline of the implementation passes. A method that changes the machine returns when
// the provider has accepted the change; Describe shows the result. A repeated call has no further
// effect, except for SetPower(Restart). Each error is an *Error, and contains no password.
type Machine interface {
	// Describe returns the present state.
	Describe(context.Context) (Description, error)
	// SetPower operates the power switch. On has no effect on a machine that is on. Off and
	// Shutdown have no effect on a machine that is off. Restart of a machine that is off fails with
	// kind Conflict.
	SetPower(context.Context, Power) error
	// SetBoot selects the device of the next boots; the zero value removes the selection. A device
	// that is not in Description.BootDevices fails with kind Unsupported.
	SetBoot(context.Context, Boot) error
	// InsertMedium replaces the medium in the CD drive; "" ejects the medium. The provider
	// downloads the URL, so the server must be reachable for the provider. A machine without a CD
	// drive fails with kind Unsupported.
	InsertMedium(ctx context.Context, url string) error
}

// PowerReader is implemented by a Machine that can read its power with fewer requests than
// Describe. It is for callers that need the state of the power quickly, and for users without other
// rights.
type PowerReader interface {
	// ReadPower returns the serial number, the UUID and the power. The other fields may be zero.
	ReadPower(context.Context) (Description, error)
}

// Power is an operation of the power switch.
type Power string

// Operations of the power switch.
const (
	On       Power = "on"
	Off      Power = "off"      // cuts the power at once
	Shutdown Power = "shutdown" // presses the power button; the system of the machine decides
	Restart  Power = "restart"  // restarts at once, like a reset button
)

// State is a state of the power.
type State string

// States of the power.
const (
	StateOn       State = "on"
	StateOff      State = "off"
	StateChanging State = "changing" // between on and off
	StateUnknown  State = "unknown"
)

// Device is a device from which a machine boots.
type Device string

// Boot devices.
const (
	Disk Device = "disk"
	CD   Device = "cd"
	PXE  Device = "pxe"
	HTTP Device = "http" // UEFI HTTP boot
)

// Boot selects a device for boots.
type Boot struct {
	Device Device // "" selects none: the firmware uses its own order
	// Once limits the selection to the next boot.
	Once bool
	// URL is the boot image for HTTP. If it is empty, the machine gets the URL by DHCP. A provider
	// that cannot set the URL fails with kind Unsupported or Rejected.
	URL string
}

// Description is the state of a machine. Fields that the provider does not know are zero.
type Description struct {
	Serial       string // of the machine, SMBIOS type 1
	UUID         string // of the machine, SMBIOS type 1, in lower case
	Manufacturer string
	Model        string
	MemoryMiB    int64
	CPUs         int // logical processors
	Power        State
	Boot         Boot // the present selection of SetBoot
	// BootDevices are the devices that SetBoot accepts.
	BootDevices []Device
	// Drive reports whether the machine has a CD drive. Medium is the URL of the medium in it;
	// empty without a medium.
	Drive  bool
	Medium string
}

// Kind is the kind of an error. It tells the caller how to react.
type Kind string

// Kinds of errors.
const (
	// Unreachable: the provider did not answer before the deadline. A later call may succeed.
	Unreachable Kind = "unreachable"
	// Untrusted: the peer is not the configured provider; for example, it has another certificate.
	Untrusted Kind = "untrusted"
	// Unauthorized: the credentials are wrong, or their user lacks a right.
	Unauthorized Kind = "unauthorized"
	// Unsupported: the machine or the provider does not have this function.
	Unsupported Kind = "unsupported"
	// Conflict: the state of the machine does not permit the operation.
	Conflict Kind = "conflict"
	// Rejected: the answer of the provider is an error, or cannot be read.
	Rejected Kind = "rejected"
	// Invalid: the configuration or an argument is wrong.
	Invalid Kind = "invalid"
)

// Error is an error of a Machine.
type Error struct {
	Kind      Kind
	Machine   string // name of the machine, or its address if it has no name
	Operation string // in the infinitive: "switch on"
	Reason    string
	Remedy    string // the next step of the operator
	Err       error  // the cause; may be nil
}

// Error returns "machine w1: cannot switch on: REASON: REMEDY".
func (e *Error) Error() string {
	return fmt.Sprintf("machine %s: cannot %s: %s: %s", e.Machine, e.Operation, e.Reason, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an *Error that err is or wraps; "" for any other error.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
