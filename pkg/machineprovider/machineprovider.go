// Package machineprovider is the interface to the power switches of machines: to a management
// controller (BMC), a virtualization host or a cloud. docs/providers.md is the guide for further
// implementations; package providertest checks them.
//
// Package redfish is the implementation for real machines, and for the machines of package vm.
package machineprovider

import (
	"context"
	"errors"
	"fmt"
)

// Machine is the power switch of one machine.
//
// All methods can be called at the same time. Each returns at the latest when its context ends; an
// implementation has a deadline of its own, too. A method that changes the machine returns when the
// provider has accepted the change: the caller reads the result by Describe. A repeated call has no
// further effect, except for Restart. Each error is an *Error, without passwords.
type Machine interface {
	// Describe returns the present state.
	Describe(context.Context) (Description, error)
	// SetPower operates the power switch. On, Off and Shutdown have no effect on a machine that has
	// this state already. Restart of a machine that is off is an error of kind Conflict.
	SetPower(context.Context, Power) error
	// SetBoot selects the device of the next boots; the zero value removes a selection. A device
	// that is not in Description.BootDevices is an error of kind Unsupported.
	SetBoot(context.Context, Boot) error
	// InsertMedium puts a medium into the CD drive, instead of the present medium; "" ejects. The
	// provider reads the URL, so the address must be reachable from there. Without a drive, it is
	// an error of kind Unsupported.
	InsertMedium(ctx context.Context, url string) error
}

// Power is an operation of the power switch.
type Power string

// Operations of the power switch.
const (
	On       Power = "on"
	Off      Power = "off"      // at once: the power is cut
	Shutdown Power = "shutdown" // the power button: the system of the machine decides
	Restart  Power = "restart"  // at once, like a reset button
)

// State is a state of the power.
type State string

// States of the power.
const (
	StateOn       State = "on"
	StateOff      State = "off"
	StateChanging State = "changing" // between the two
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
	Device Device // "": none, the order of the firmware
	// Once ends the selection with the next boot.
	Once bool
	// URL is the boot image for HTTP; "": the machine gets it by DHCP. Not each provider can set
	// it: the error is of kind Unsupported or Rejected.
	URL string
}

// Description is the state of a machine. A field that the provider does not know is zero.
type Description struct {
	Serial       string // SMBIOS type 1
	UUID         string // SMBIOS type 1, lower case
	Manufacturer string
	Model        string
	MemoryMiB    int64
	CPUs         int // logical processors
	Power        State
	Boot         Boot // the present selection
	// BootDevices are the devices that SetBoot accepts.
	BootDevices []Device
	// Drive reports whether InsertMedium is possible; Medium is the URL of the present medium.
	Drive  bool
	Medium string
}

// Kind is the kind of an error: what a caller can do about it.
type Kind string

// Kinds of errors.
const (
	// Unreachable: no answer, or none before the deadline. A later call may succeed.
	Unreachable Kind = "unreachable"
	// Untrusted: the peer is not the configured one, for example because of its certificate.
	Untrusted Kind = "untrusted"
	// Unauthorized: the credentials are wrong, or lack a right.
	Unauthorized Kind = "unauthorized"
	// Unsupported: the machine or the provider has no such ability.
	Unsupported Kind = "unsupported"
	// Conflict: the state of the machine does not permit the operation.
	Conflict Kind = "conflict"
	// Rejected: the provider has answered with an error, or with an answer that cannot be read.
	Rejected Kind = "rejected"
	// Invalid: the configuration or an argument is wrong.
	Invalid Kind = "invalid"
)

// Error is an error of a Machine.
type Error struct {
	Kind      Kind
	Machine   string // its name, or its address if it has no name
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

// KindOf returns the kind of an error; "" for an error of another type.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
