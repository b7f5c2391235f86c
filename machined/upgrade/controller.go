package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Deps is the environment of a Controller.
type Deps struct {
	// Release returns the build information of the running image.
	Release func() buildinfo.Release
	Disk    Disk
	Files   Files
	// Configuration is the stored configuration, which an upgrade saves and a rollback restores.
	Configuration Configuration
	Trial         Trial
	Network       Network
	Node          Node
	Disruption    Disruption
	// PeerEndpoint returns the endpoint of another machine of the cluster.
	PeerEndpoint func(address string) (client.Endpoint, error)
	// Serve runs the function send, which sends data to another machine. send calls accepted()
	// after each piece that the receiver has accepted. Serve ends a transfer that stalls.
	Serve func(ctx context.Context, send func(ctx context.Context, accepted func()) error) error
	// Reboot shuts the machine down. At the next boot, the boot loader selects the version. The log
	// shows the reason.
	Reboot func(reason string) error
	// Running is canceled when the machine shuts down.
	Running context.Context
	// Restarter runs the tasks of the package.
	Restarter panics.Restarter
	// Event adds an event of an upgrade to the machine's events.
	Event func(kind, message string)
	// Console prints a line on the console.
	Console func(line string)
}

// Disk is the system disk.
type Disk struct {
	// RunningSlot is "A" or "B". It is empty if the system runs from memory.
	RunningSlot string
	// Slots returns the partitions of the two slots.
	Slots func() (Slot, error)
	// LoadModules loads the kernel modules that mount the ESP.
	LoadModules func(names ...string) error
	// StorageProblem returns the reason for which STATE and DATA are not mounted. It returns "" if
	// they are mounted.
	StorageProblem func() string
	// Firmware checks whether the firmware of the machine accepts a boot image.
	Firmware Firmware
	// CheckUnlock returns an error if the machine could not open its encrypted partitions after the
	// boot of a boot image, or if it cannot find that out. It opens the boot image only if the
	// machine has encrypted partitions. A nil function accepts every boot image.
	CheckUnlock func(ctx context.Context, image func() (*os.File, error)) error
}

// checkUnlock is CheckUnlock, unless force is true.
func (d Disk) checkUnlock(ctx context.Context, image func() (*os.File, error), force bool) error {
	if d.CheckUnlock == nil || force {
		return nil
	}
	err := d.CheckUnlock(ctx, image)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, diskkey.ErrTPM), errors.Is(err, diskkey.ErrSecureBoot), errors.Is(err, diskkey.ErrImage):
		return fmt.Errorf("after the reboot, STATE and DATA would stay locked until an operator gives the recovery key: %w; --force ignores this check", err)
	}
	return fmt.Errorf("it is not known whether STATE and DATA would open after the reboot: %w; --force ignores this check", err)
}

// Firmware checks boot images, as an open file or as bytes. Both methods return an error if the
// firmware rejects the image, or if the firmware's decision cannot be determined.
// secureboot.Checker implements the interface.
type Firmware interface {
	Check(ctx context.Context, image *os.File) error
	CheckBytes(ctx context.Context, image []byte) error
}

// Files are the files that the package owns, and files of other packages that it reads.
type Files struct {
	Records Store
	Inbox   Inbox
	// ReleaseKeys is the file with the keys that this image trusts.
	ReleaseKeys string
	// SBOM is the file with the bill of materials of this image. SystemStatement is the file with
	// the signed statement of the running version; the package reads it if the system runs from
	// memory.
	SBOM, SystemStatement string
	// APICertificate is the file with the certificate that the management API serves.
	APICertificate string
	// EtcdSnapshots is the directory with the savepoints. The orchestrator owns it.
	EtcdSnapshots string
}

// Configuration is the stored configuration of the machine.
type Configuration struct {
	// Confirmed returns the documents that the next boot would load, without a configuration on
	// trial. It returns nil if there are no documents.
	Confirmed func() ([]byte, error)
	// DropStaged removes the documents that are staged for the next boot.
	DropStaged func() error
	// Restore replaces the stored documents, but retains the present keys.
	Restore func(documents []byte) error
	// Reload activates the stored documents.
	Reload func()
	// CheckUpgrade returns an error if an extension of the active configuration is missing for a
	// version.
	CheckUpgrade func(version string) error
	// CheckRollback returns an error if a rollback to saved documents (nil for none) must not
	// happen: an extension is missing, two operators must approve the change, or a removed CA
	// would be trusted again. force overrides the last reason.
	CheckRollback func(ctx context.Context, documents []byte, force bool) error
}

// Trial is the environment of a version on trial.
type Trial struct {
	// Started is the time at which init started. The deadline of the trial is relative to this
	// time.
	Started time.Time
	// Watch returns a watcher of the machine's health.
	Watch func() HealthWatcher
	// Events returns the events since boot.
	Events func() []Event
	// Services gives access to the logs of the services.
	Services *supervise.Manager
	// KernelStart returns the time at which the kernel started.
	KernelStart func() (time.Time, error)
}

// Network is the network of the machine.
type Network struct {
	// Addresses returns the addresses at which the machine with a given configuration serves the
	// management API.
	Addresses func(*config.Config) []netip.Addr
	// Gateways returns one probe for each gateway. A probe returns nil as soon as its gateway
	// responds, or an error when its context ends.
	Gateways func() []func(context.Context) error
}

// Node is the Kubernetes node of the machine.
type Node struct {
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// Egress returns the proxy and the CAs by which the machine reaches registries at present.
	Egress func() egress.Config
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// Drain drains the node before the machine shuts down.
	Drain Drain
}

// Drain is the drain of the machine's own node (package drain of machined).
type Drain interface {
	// Wanted reports whether the configuration wants a drain.
	Wanted() bool
	// Drain drains the node for an operation that a caller (by) has requested, if the configuration
	// wants a drain. The drain continues if the caller disconnects. If Drain returns an error, it
	// has undone the drain.
	Drain(ctx context.Context, o disruption.Operation, by string) error
	// Undo makes a drained node schedulable again when the operation o does not take place.
	Undo(o disruption.Operation, by string)
}

// Disruption gets the permission of the cluster before the machine is away (package disruption of
// machined).
type Disruption interface {
	// Permit takes the turn of the control plane for an operation. If the cluster refuses the
	// operation, Permit returns the reason as an error. If the operation does not take place, the
	// caller must return the turn by the function giveBack.
	Permit(ctx context.Context, r disruption.Request) (giveBack func(), err error)
	// Confirm checks again whether the cluster still permits the operation.
	Confirm(ctx context.Context, r disruption.Request) error
	// Held reports whether the machine has the turn. Return returns the turn and reports whether it
	// succeeded.
	Held() bool
	Return() bool
}

// State is the state of upgrades: topic "upgrade".
type State struct {
	slot.Record
	Operation  string `json:"operation,omitempty"` // name of the running operation; "" if none runs
	Done       int64  `json:"done,omitempty"`      // bytes that the operation has processed
	Total      int64  `json:"total,omitempty"`
	WaitingFor string `json:"waitingFor,omitempty"` // first failed check of a trial
}

// Upgrade groups the three objects of the package, and the ESP that they share.
type Upgrade struct {
	Controller *Controller
	Receiver   *Receiver
	Server     *Server
	ESP        *esp.Partition
}

// New returns the objects for a machine. It reads no file and starts no goroutine.
func New(d Deps) *Upgrade {
	p := progress{state: cell.New(State{}), event: d.Event}
	partition := &esp.Partition{
		Device: func() (string, error) { s, err := d.Disk.Slots(); return s.ESP, err },
		Target: paths.ESP, Modules: d.Disk.LoadModules,
	}
	writeMu := new(sync.Mutex)
	c := &Controller{
		deps: &d, progress: p, esp: partition, savepoints: savepoints{&d}, probes: probes{&d}, writeMu: writeMu,
	}
	return &Upgrade{
		Controller: c,
		Receiver: &Receiver{
			deps: &d, progress: p, controller: c, esp: partition, savepoints: savepoints{&d}, probes: probes{&d}, writeMu: writeMu,
		},
		Server: newServer(&d, p, partition),
		ESP:    partition,
	}
}

// Controller owns the record of the last upgrade. It passes each event to slot.Step, watches the
// version on trial, and rolls back. All methods are safe for concurrent use.
type Controller struct {
	deps       *Deps
	progress   progress
	esp        *esp.Partition
	savepoints savepoints
	probes     probes
	eventMu    sync.Mutex // serializes handle
	// writeMu is locked while a version is received or written. The Receiver and TryLock use the
	// same mutex.
	writeMu *sync.Mutex
	// Callers of the API can cause reads of files: of the lowest permitted release epoch, and of
	// the record of a restored savepoint. floorReads and restoredReads bound the time and the
	// number of these reads.
	floorReads, restoredReads limits.Bounded
}

// State returns the state of upgrades.
func (c *Controller) State() *cell.Cell[State] { return c.progress.state }

// Record returns the record of the last upgrade.
func (c *Controller) Record() slot.Record { return c.progress.record() }

// TryLock excludes upgrades, rollbacks and other callers until the caller calls unlock. ok is false
// if a version is being received or written.
func (c *Controller) TryLock() (unlock func(), ok bool) {
	if !c.writeMu.TryLock() {
		return nil, false
	}
	return c.writeMu.Unlock, true
}

var errBusy = status.Error(codes.Aborted, "upgrade refused: another bundle is being received or written; `orlopctl upgrade status` shows its progress")

// version returns the running version.
func (d *Deps) version() string { return d.Release().Version }

// records returns the store of the records on STATE.
func (d *Deps) records() Store { return d.Files.Records }

// storageProblem returns the reason for which STATE and DATA are not mounted. It returns "" if the
// package can store files.
func (d *Deps) storageProblem() string { return d.Disk.StorageProblem() }

// progress reports the progress of upgrades.
type progress struct {
	state *cell.Cell[State]
	event func(kind, message string)
}

// record returns the record of the last upgrade.
func (p progress) record() slot.Record {
	now, _ := p.state.Get()
	return now.Record
}

// setRecord sets the record of the last upgrade.
func (p progress) setRecord(r slot.Record) {
	p.state.Update(func(s State) State { s.Record = r; return s })
}

// begin sets the name of the running operation and its size in bytes. An empty name means that no
// operation runs.
func (p progress) begin(operation string, total int64) {
	p.state.Update(func(s State) State { s.Operation, s.Done, s.Total = operation, 0, total; return s })
	if operation != "" {
		p.event("operation", operation)
	}
}

// setDone sets the number of bytes that the running operation has processed.
func (p progress) setDone(bytes int64) {
	p.state.Update(func(s State) State { s.Done = bytes; return s })
}

// failure adds an event of kind "failure".
func (p progress) failure(why string) { p.event("failure", why) }
