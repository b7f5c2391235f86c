package redfish

import "context"

// Target is the device of a boot override. Its values are the values of BootSourceOverrideTarget in
// Redfish.
type Target string

// Targets of a boot override.
const (
	None     Target = "None"
	Pxe      Target = "Pxe"
	UefiHTTP Target = "UefiHttp"
	Cd       Target = "Cd"
	Hdd      Target = "Hdd"
)

// Override selects the first device of a boot. The zero value and the target None select no device.
type Override struct {
	Target Target
	// Once limits the override to the next boot. Without Once, the override is valid until a client
	// disables it.
	Once bool
}

// Enabled reports whether the override selects a device.
func (o Override) Enabled() bool { return o.Target != "" && o.Target != None }

// Hardware describes a system. It does not change.
type Hardware struct {
	Serial    string // SMBIOS type 1
	UUID      string // SMBIOS type 1, lower case
	MemoryMiB int
	CPUs      int
	// Targets are the possible targets of an override besides None.
	Targets []Target
	// Drive reports whether the system has a CD drive.
	Drive bool
}

// System is a machine with a power switch. Its methods can be called concurrently.
type System interface {
	// Name is a DNS label, unique in the service.
	Name() string
	Hardware() Hardware
	Running() bool
	PowerOn(context.Context) error
	PowerCut()
	// PowerButton requests a shutdown. The system decides whether and when it shuts down.
	PowerButton(context.Context) error
	// Restart resets a running system, which then boots from the device of the override.
	Restart(context.Context) error
	Override() Override
	// SetOverride sets the override of the next boots. The target is None or one of
	// Hardware.Targets.
	SetOverride(Override)
	// Medium is the file in the CD drive; empty without a medium.
	Medium() string
	// InsertMedium puts a file of this computer into the CD drive, also while the system runs. The
	// file replaces the present medium.
	InsertMedium(ctx context.Context, file string) error
	EjectMedium(context.Context) error
}
