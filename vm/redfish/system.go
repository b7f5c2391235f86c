package redfish

import "context"

// Target is a device of a boot override, in the words of Redfish.
type Target string

// Targets of a boot override.
const (
	None     Target = "None"
	Pxe      Target = "Pxe"
	UefiHTTP Target = "UefiHttp"
	Cd       Target = "Cd"
	Hdd      Target = "Hdd"
)

// Override selects the first device of a boot. The zero value and the target None select none.
type Override struct {
	Target Target
	// Once ends the override with the next boot. Otherwise it is valid until it is disabled.
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

// System is a machine with a power switch. All methods can be called at the same time.
type System interface {
	// Name is a DNS label, unique in the service.
	Name() string
	Hardware() Hardware
	Running() bool
	PowerOn(context.Context) error
	PowerCut()
	// PowerButton requests a shutdown; the system decides.
	PowerButton(context.Context) error
	// Restart starts a running system again, from the device of the override.
	Restart(context.Context) error
	Override() Override
	// SetOverride sets the override of the next boots. The target is None or one of
	// Hardware.Targets.
	SetOverride(Override)
	// Medium is the file in the CD drive; empty without a medium.
	Medium() string
	// InsertMedium puts a file of this computer into the CD drive, also while the system runs. It
	// replaces the present medium.
	InsertMedium(ctx context.Context, file string) error
	EjectMedium(context.Context) error
}
