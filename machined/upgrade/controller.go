package upgrade

import (
	"context"
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
	// Serve sends data to another machine with send, which calls taken after each piece; it ends a
	// transfer that stalls.
	Serve func(ctx context.Context, send func(ctx context.Context, taken func()) error) error
	// Reboot shuts the machine down and boots the version that the loader selects.
	Reboot func(why string) error
	// Running is canceled at shutdown.
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
	// RunningSlot is "A" or "B"; empty if the system runs from memory.
	RunningSlot string
	// Slots returns the partitions of the two slots.
	Slots func() (Slot, error)
	// LoadModules loads the kernel modules that mount the ESP.
	LoadModules func(names ...string) error
	// StorageProblem returns the reason for which no disk is mounted for storage; empty if a disk
	// is mounted.
	StorageProblem func() string
	// Firmware checks whether the firmware of the machine would start a boot image.
	Firmware Firmware
}

// Firmware returns an error if the firmware would not start a boot image, or if this is unknown: a
// file, or its bytes (secureboot.Checker).
type Firmware interface {
	Check(ctx context.Context, image *os.File) error
	CheckBytes(ctx context.Context, image []byte) error
}

// Files are the files of the package, and files of others that it reads.
type Files struct {
	Records Store
	Inbox   Inbox
	// ReleaseKeys is the file with the keys that this image trusts.
	ReleaseKeys string
	// SBOM is the file with the bill of materials of this image, SystemStatement the file with the
	// signed statement of a version that runs from memory.
	SBOM, SystemStatement string
	// APICertificate is the file with the certificate that the management API serves.
	APICertificate string
	// EtcdSnapshots is the directory with the savepoints. The orchestrator owns it.
	EtcdSnapshots string
}

// Configuration is the stored configuration of the machine.
type Configuration struct {
	// Confirmed returns the documents that the next boot would load, without a trial; nil if there
	// are none.
	Confirmed func() ([]byte, error)
	// DropStaged removes the documents that are staged for the next boot.
	DropStaged func() error
	// Restore replaces the stored documents, and retains the present keys.
	Restore func(documents []byte) error
	// Reload activates the stored documents.
	Reload func()
	// CheckUpgrade returns an error if an upgrade to a version would lose an extension of the
	// active configuration, and CheckRollback if an extension of saved documents (nil for none) is
	// missing.
	CheckUpgrade  func(version string) error
	CheckRollback func(documents []byte) error
}

// Trial is the environment of a version on trial.
type Trial struct {
	// Started is the start of init; the deadline of the trial counts from it.
	Started time.Time
	// Watch returns a watcher of the machine's health.
	Watch func() HealthWatcher
	// Events returns the events since boot.
	Events func() []Event
	// Services has the logs of the services.
	Services *supervise.Manager
	// KernelStart returns the time at which the kernel started.
	KernelStart func() (time.Time, error)
}

// Network is the network of the machine.
type Network struct {
	// Addresses returns the addresses at which the management API answers with a configuration.
	Addresses func(*config.Config) []netip.Addr
	// Gateways returns a probe for each gateway, which waits until the gateway answers.
	Gateways func() []func(context.Context) error
}

// Node is the Kubernetes node of the machine.
type Node struct {
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// Egress returns how registries are reached now.
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
	// Drain drains the node for an operation of an author, if the configuration wants it. It
	// continues if the author disconnects. After an error the node is as before.
	Drain(ctx context.Context, o disruption.Operation, by string) error
	// Undo makes a drained node schedulable again, because the operation does not happen.
	Undo(o disruption.Operation, by string)
}

// Disruption asks the cluster before the machine is away (package disruption of machined).
type Disruption interface {
	// Permit takes the turn of the control plane for an operation, or returns the reason for which
	// it is refused. giveBack returns the turn if the operation does not happen.
	Permit(ctx context.Context, r disruption.Request) (giveBack func(), err error)
	// Confirm checks a permitted operation again.
	Confirm(ctx context.Context, r disruption.Request) error
	// Held reports whether the machine has the turn, and Return returns it.
	Held() bool
	Return() bool
}

// State is the state of upgrades: topic "upgrade".
type State struct {
	slot.Record
	Operation  string `json:"operation,omitempty"` // running operation
	Done       int64  `json:"done,omitempty"`      // bytes done
	Total      int64  `json:"total,omitempty"`
	WaitingFor string `json:"waitingFor,omitempty"` // missing check of a version on trial
}

// Upgrade are the parts of the package on one machine.
type Upgrade struct {
	Controller *Controller
	Receiver   *Receiver
	Server     *Server
	ESP        *esp.Partition
}

// New returns the parts of a machine. It reads no file and starts no goroutine.
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

// Controller owns the record of the last upgrade: it passes each event to slot.Step, watches the
// version on trial, and rolls back. All methods are safe for concurrent use.
type Controller struct {
	deps       *Deps
	progress   progress
	esp        *esp.Partition
	savepoints savepoints
	probes     probes
	eventMu    sync.Mutex // at most one event at a time
	// at most one system is received or written at a time; the Receiver and TryLock share it
	writeMu *sync.Mutex
	// reads for callers of the API
	floorReads, restoredReads limits.Bounded
}

// State returns the state of upgrades.
func (c *Controller) State() *cell.Cell[State] { return c.progress.state }

// Record returns the record of the last upgrade.
func (c *Controller) Record() slot.Record { return c.progress.record() }

// TryLock excludes upgrades, rollbacks and other callers until unlock; false if a system is being
// received or written.
func (c *Controller) TryLock() (unlock func(), ok bool) {
	if !c.writeMu.TryLock() {
		return nil, false
	}
	return c.writeMu.Unlock, true
}

var errBusy = status.Error(codes.Aborted, "upgrade refused: another bundle is being received or written; `orlopctl upgrade status` shows its progress")

// version returns the running version.
func (d *Deps) version() string { return d.Release().Version }

// records returns the records on STATE.
func (d *Deps) records() Store { return d.Files.Records }

// storageProblem returns the reason for which the package stores nothing; empty if it stores.
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

// begin sets the running operation of an upgrade and its size in bytes; empty: none.
func (p progress) begin(operation string, total int64) {
	p.state.Update(func(s State) State { s.Operation, s.Done, s.Total = operation, 0, total; return s })
	if operation != "" {
		p.event("operation", operation)
	}
}

// setDone sets the number of bytes done.
func (p progress) setDone(bytes int64) {
	p.state.Update(func(s State) State { s.Done = bytes; return s })
}

// failure reports a failure.
func (p progress) failure(why string) { p.event("failure", why) }
