package etcd

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

const (
	// dataTimeout bounds operations for which etcd reads or writes all of its data. etcd holds at
	// most 4 GiB, for which a slow disk needs minutes.
	dataTimeout = 10 * time.Minute
	// transferTimeout bounds the transfer between this machine and a caller, because a slow caller
	// would block other callers and occupy space on DATA.
	transferTimeout = time.Hour
	// serveTimeout bounds the time for process "api" to stop and to serve the restored data.
	serveTimeout = 6 * time.Minute
	// maxSnapshot exceeds the size of any snapshot: a database has at most 4 GiB and may grow a
	// little beyond.
	maxSnapshot = 8 << 30
	// snapshotReserve is the space in bytes that an uploaded snapshot leaves free on DATA; the
	// orchestrator has the same value.
	snapshotReserve = 512 << 20
	// componentEtcd is the component of process "api" that holds the data.
	componentEtcd = "etcd"
)

// Config is the configuration of etcd.
type Config struct {
	Config  *config.Config // nil if the machine has none, or an unreadable one
	OnTrial bool           // the previous configuration may become active again
	Egress  egress.Config  // how the store of snapshots is reached
}

// Deps is the environment of a Manager.
type Deps struct {
	Config cell.View[Config] // only the role, the cluster and the snapshots are used
	// NotInstalled is the reason why a system that runs from memory has no etcd; empty if it runs
	// from a disk.
	NotInstalled string
	// Started is the time at which init started.
	Started time.Time
	// Stopping is canceled at shutdown.
	Stopping context.Context
	// Command runs a command of the orchestrator; ReadCommand also limits concurrent processes, for
	// calls that every reader can make.
	Command, ReadCommand nodespec.Command
	// Services runs the orchestrator's processes; etcd is a component of nodespec.ServiceAPI.
	Services *supervise.Manager
	// LockUpgrade prevents upgrades until unlock() is called. ok is false if an upgrade receives or
	// writes a version at present.
	LockUpgrade func() (unlock func(), ok bool)
	// UpgradePending returns why an upgrade is not decided yet; nil if none is pending.
	UpgradePending func() error
	// FreeSpace returns the free space of DATA in bytes.
	FreeSpace func() (int64, error)
	// DataReplaced is called when etcd may serve other data than before.
	DataReplaced func()
	// NameInUse reports whether another machine, or the cluster itself, uses the name of a removed
	// machine.
	NameInUse func(c *config.Config, name string) bool
	// DeleteNodes deletes Nodes with their pods, and returns the names that existed.
	DeleteNodes func(ctx context.Context, c *config.Config, names []string) ([]string, error)
	// FormerKey returns an error if the API server may still encrypt Secrets with a former key.
	FormerKey func(ctx context.Context) error
	// Event adds an event to the machine's events.
	Event func(source, kind, message string)
}

// Manager operates on the etcd data of a machine. All methods are safe for concurrent use.
type Manager struct {
	deps Deps
	// at most one snapshot of the etcd data is taken or restored at a time
	snapshotMu sync.Mutex
	// held while a snapshot is sent to one caller: its file occupies space on DATA until then
	sendSnapshotMu sync.Mutex
	schedule       snapshotSchedule // scheduled snapshots
	uploader       uploader         // upload of stored snapshots
}

// New returns the manager of a machine. RunSchedule takes its scheduled snapshots, and RunUploads
// uploads stored snapshots.
func New(d Deps) *Manager {
	return &Manager{deps: d, uploader: uploader{wakeup: cell.NewSignal()}}
}

var errSnapshotBusy = status.Error(codes.Aborted, "etcd: another snapshot is being taken, sent or restored on this machine; try again when that is done")

// check returns an error if etcd does not run on this machine.
func (k *Manager) check() error {
	now, _ := k.deps.Config.Get()
	return k.checkConfig(now.Config)
}

// checkConfig returns an error if etcd does not run on this machine with a configuration.
func (k *Manager) checkConfig(c *config.Config) error {
	switch {
	case k.deps.NotInstalled != "":
		return status.Error(codes.FailedPrecondition, "etcd: "+k.deps.NotInstalled)
	case !c.IsControlPlane():
		return status.Error(codes.FailedPrecondition, "etcd: does not run on this machine; ask a control-plane machine")
	}
	return nil
}

// restart restarts etcd. The function started reports whether the pending operation has started.
// After that, restart returns when etcd serves, or when the process of etcd has ended again. In the
// second case, failed is the reason.
func (k *Manager) restart(started func() bool) (failed string, err error) {
	defer k.deps.DataReplaced() // also if the restore takes effect after the return
	if err := k.deps.Services.Restart(nodespec.ServiceAPI); err != nil {
		return "", err
	}
	serving, cancel := context.WithTimeout(k.deps.Stopping, serveTimeout)
	defer cancel()
	_, err = cell.Wait(serving, k.deps.Services.Status(), func(list []supervise.Status) bool {
		if !started() {
			return false
		}
		failed = exitReason(list, nodespec.ServiceAPI)
		return failed != "" || supervise.Find(list, nodespec.ServiceAPI).ComponentReady(componentEtcd)
	})
	return failed, err
}

// exitReason returns why a service that waits for its restart has ended; empty if it does not wait.
func exitReason(list []supervise.Status, service string) string {
	s := supervise.Find(list, service)
	if s.State != supervise.BackingOff {
		return ""
	}
	return s.Detail
}
