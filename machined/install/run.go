package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Deps is the environment of a Manager.
type Deps struct {
	// Disks reads the disks of the machine, sorted by path.
	Disks func(context.Context) ([]Disk, error)
	// Release returns the build information of the running image.
	Release func() buildinfo.Release
	// Identity returns the machine key, which the installed system retains.
	Identity func() *pki.Leaf
	// ConfigFile is the file of the configuration on STATE.
	ConfigFile string
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// Run runs a program until it exits.
	Run mkfs.Runner
	// LoadModules loads kernel modules.
	LoadModules func(names ...string) error
	// Lock prevents pairing and other installations until unlock() is called. ok is false if
	// another caller holds the lock.
	Lock func() (unlock func(), ok bool)
	// Reboot reboots the machine in order, and does not return.
	Reboot func(why string)
	// Running is canceled at shutdown.
	Running context.Context
	// Event adds an event of the installation to the machine's events.
	Event func(kind, message string)
	// Console prints a line on the console.
	Console func(line string)
}

// The phases of an installation.
const (
	Installing = "installing"
	Done       = "installed" // the machine reboots
	Failed     = "failed"    // the installation can be started again
)

// State is the progress of an installation: topic "install".
type State struct {
	Phase string `json:"phase,omitempty"`
	Disk  string `json:"disk,omitempty"`
	// why the installation failed, or why an unattended installation was rejected
	Reason    string `json:"reason,omitempty"`
	Operation string `json:"operation,omitempty"` // running operation
	Done      int64  `json:"done,omitempty"`      // bytes that the running operation has done
	Total     int64  `json:"total,omitempty"`
}

// Manager installs the system that runs from memory. All methods are safe for concurrent use.
type Manager struct {
	deps    Deps
	state   *cell.Cell[State]
	disksMu sync.Mutex // at most one read of the disks at a time
}

// New returns the manager of a machine. It reads no file and starts no goroutine.
func New(d Deps) *Manager { return &Manager{deps: d, state: cell.New(State{})} }

// State returns the progress of the installation.
func (m *Manager) State() *cell.Cell[State] { return m.state }

// Began reports whether an installation has begun since boot.
func (m *Manager) Began() bool {
	now, _ := m.state.Get()
	return now.Disk != ""
}

// ReportInstalled reports disks with an installed system on the console.
func (m *Manager) ReportInstalled(ctx context.Context) error {
	facts, err := m.facts(ctx, "")
	if err != nil {
		return err
	}
	for _, d := range Installed(facts.Disks) {
		m.deps.Console(fmt.Sprintf("install: Orlop OS is installed on %s; this system, from the boot medium, does not change it: remove the medium, or put the disk first in the boot order of the firmware", d))
	}
	return nil
}

// Plan returns the installation of a configuration, or why it is impossible.
func (m *Manager) Plan(ctx context.Context, c *config.Config, unattended bool) (Want, error) {
	ask := c.Machine.Spec.Install
	if ask == nil {
		return Want{}, errors.New("the system runs from memory and stores nothing; select the disk of the installation in Machine.spec.install (`orlopctl get disks` lists them)")
	}
	facts, err := m.facts(ctx, ask.Disk.Match)
	if e := (*diskmatch.ExpressionError)(nil); errors.As(err, &e) {
		return Want{}, config.Problems{e.Problem(c, config.MatchField)}
	}
	if err != nil {
		return Want{}, err
	}
	if facts.System, err = ReadSystem(m.deps.Release()); err != nil {
		return Want{}, err
	}
	return Plan(Config{Disk: ask.Disk, Wipe: ask.Wipe, Unattended: unattended}, facts)
}

// facts reads the disks, and evaluates the disk expression, if any.
func (m *Manager) facts(ctx context.Context, expression string) (f Facts, err error) {
	m.disksMu.Lock()
	defer m.disksMu.Unlock()
	if f.Disks, err = m.deps.Disks(ctx); err != nil {
		return Facts{}, err
	}
	if expression != "" {
		var disks []diskmatch.Disk
		for _, d := range f.Disks {
			disks = append(disks, d.hardware())
		}
		f.Matches, err = diskmatch.Evaluate(ctx, m.deps.Command, expression, disks)
	}
	return f, err
}

// Reject reports why an unattended installation is impossible, in the topic and on the console,
// unless this reason is reported already.
func (m *Manager) Reject(why error) {
	if now, _ := m.state.Get(); now.Reason == why.Error() {
		return
	}
	m.state.Update(func(s State) State {
		if s.Disk == "" { // an operator may have started an installation meanwhile
			s = State{Phase: Failed, Reason: why.Error()}
		}
		return s
	})
	for line := range strings.Lines("install: " + why.Error()) {
		m.deps.Console(strings.TrimSpace(line))
	}
}

// Unattended starts the installation that the configuration of a boot medium, or of the image,
// requests; source names the medium or the image. There is no caller, so an error is reported on
// the console and in the topic. After an installation has begun, Unattended starts no other one,
// even if the first one failed.
func (m *Manager) Unattended(ctx context.Context, c *config.Config, documents []byte, source string) {
	if c == nil || m.deps.Identity() == nil || m.Began() {
		return
	}
	w, err := m.Plan(ctx, c, true)
	if err == nil {
		err = m.Begin(w, documents, source)
	}
	if err != nil {
		m.Reject(err)
	}
}

// refused returns an error that rejects a configuration.
func refused(err error) error { return fmt.Errorf(config.Refused+" %w", err) }

// Begin starts the operations in the background, or returns an error that rejects the
// configuration. Only one installation runs at a time. After a success, no other installation
// starts, because the lock is held until the reboot.
func (m *Manager) Begin(w Want, documents []byte, by string) error {
	unlock, ok := m.deps.Lock()
	if !ok {
		return refused(errors.New("an installation is running (`orlopctl get install`)"))
	}
	files, err := m.files(documents)
	if err != nil {
		unlock()
		return refused(err)
	}
	m.deps.Event("operation", "onto "+w.Disk.String()+", asked by "+by)
	m.state.Set(State{Phase: Installing, Disk: w.Disk.Path})
	ops := Operations(w, Tools{
		Run: m.deps.Run, Modules: m.deps.LoadModules, Files: files,
		Report: func(bytes, of int64) {
			m.state.Update(func(s State) State { s.Done, s.Total = bytes, of; return s })
		},
	})
	panics.Go("installation", func() {
		defer func() {
			if now, _ := m.state.Get(); now.Phase == Installing { // the method run has panicked
				m.state.Set(State{Phase: Failed, Disk: w.Disk.Path, Reason: "machined panicked; `orlopctl events` shows the reason"})
				unlock()
			}
		}()
		m.run(m.deps.Running, w, ops, unlock)
	})
	return nil
}

// files returns the files for STATE. The configuration is the last file, because a machine key on
// STATE without a configuration is harmless. The caller holds the lock, so no pairing changes the
// files meanwhile.
func (m *Manager) files(documents []byte) ([]File, error) {
	identity := m.deps.Identity()
	files := []File{
		{Name: paths.MachineKey, Content: identity.KeyPEM()}, {Name: paths.MachineCert, Content: identity.CertPEM()},
	}
	ca, err := os.ReadFile(paths.PairedCAInMemory)
	switch {
	case err == nil:
		files = append(files, File{Name: paths.PairedCA, Content: ca})
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the operator's CA: %w", err)
	}
	return append(files, File{Name: m.deps.ConfigFile, Content: documents}), nil
}

// run performs the operations and reboots. After an error, it calls unlock() and does not reboot.
func (m *Manager) run(ctx context.Context, w Want, ops []reconcile.Op, unlock func()) {
	began := time.Now()
	for _, op := range ops {
		m.state.Update(func(s State) State { s.Operation, s.Done, s.Total = op.String(), 0, 0; return s })
		m.deps.Console("install: " + op.String())
		if err := op.Do(ctx); err != nil {
			reason := fmt.Sprintf("cannot %s: %v", op, err)
			m.state.Set(State{Phase: Failed, Disk: w.Disk.Path, Reason: reason})
			m.deps.Console("install: " + reason + "; no system boots from " + w.Disk.Path + "; apply a configuration to start again")
			unlock()
			return
		}
	}
	m.state.Set(State{Phase: Done, Disk: w.Disk.Path})
	m.deps.Console(fmt.Sprintf("install: version %s is on %s after %.1f s; rebooting into it", w.System.Version, w.Disk.Path, time.Since(began).Seconds()))
	m.deps.Reboot("installed on " + w.Disk.Path)
}
