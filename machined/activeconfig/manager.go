package activeconfig

import (
	"context"
	"sync"
	"time"

	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
)

// Deps is the environment of a Manager.
type Deps struct {
	Store    configstore.Store
	Embedded string // file of the configuration in the image
	// StorageProblem returns why no disk is mounted for storage; empty if a disk is mounted.
	StorageProblem func() string
	InMemory       bool // the system runs from memory
	Network        Network
	Seed           SeedDeps
	// Undecided returns why an upgrade is not decided yet, or nil.
	Undecided func() error
	// Proves reports whether a connection proves that the machine accepts new connections with a
	// configuration. age is the age of the connection in milliseconds, as apid sends it.
	// AwaitNetwork waits until the network has converged to a configuration.
	Proves       func(c *config.Config, age string) bool
	AwaitNetwork func(context.Context, *config.Config) error
	// WaitingServices returns the services that do not run with a configuration yet. The error is
	// limits.ErrUnknown if STATE does not answer.
	WaitingServices func(context.Context, *config.Config) ([]string, error)
	// UnrestoredSysctls returns the named kernel parameters that differ from their values with a
	// configuration.
	UnrestoredSysctls func(c *config.Config, names []string) ([]string, error)
	// Reboot starts a reboot.
	Reboot func(why string) error
	// Event adds an event of the configuration; Console writes a line to the console.
	Event   func(kind, message string)
	Console func(line string)
}

// Network is the network, for the check whether the machine has an address with a configuration.
type Network struct {
	Config *cell.Cell[network.Config] // configuration of the controller
	State  *cell.Cell[network.State]
}

// Manager owns the active configuration.
type Manager struct {
	deps Deps
	cell *cell.Cell[Active]
	mu   sync.Mutex // at most one configuration is activated at a time

	stagedReads limits.Bounded // reads of STATE by Staged
}

// New returns a manager without a configuration.
func New(d Deps) *Manager { return &Manager{deps: d, cell: cell.New(Active{})} }

// Active is the active configuration.
type Active struct {
	Config *config.Config // nil if there is none
	At     time.Time      // time of its activation
	// Source: "STATE", "image", "API (CN=…)", "medium /dev/sdb1:machine.yaml"
	Source string
	// Documents are the original documents from STATE, the image or a medium; nil after an apply
	// over the API
	Documents []byte
	Problem   string // why the stored configuration is unusable
	// TrialEnd is the deadline of the trial, at which the previous configuration becomes active
	// again; zero if this configuration is not on trial
	TrialEnd time.Time
	// Overdue is true if the trial ended before this boot and the revert has failed. The revert is
	// tried again, and the trial cannot be confirmed.
	Overdue bool
	// Tried are the earlier configurations of the same trial, which were not confirmed.
	Tried []*config.Config
	// TrialName is the caller's name for the trial; it can be empty.
	TrialName string
	// SameNetwork is true if the trial did not change the links, addresses and routes.
	SameNetwork bool
	// Due is the time at which the machine begins to apply this configuration; zero for at once. It
	// is set for a change that can cut off its caller, so that the caller first receives the
	// answer.
	Due time.Time
}

// OnTrial reports whether the configuration reverts unless a client confirms it.
func (a Active) OnTrial() bool { return !a.TrialEnd.IsZero() }

// MachineName returns the machine name; empty without a configuration.
func (a Active) MachineName() string {
	if a.Config == nil {
		return ""
	}
	return a.Config.Machine.Metadata.Name
}

// Cell holds the active configuration.
func (m *Manager) Cell() *cell.Cell[Active] { return m.cell }

// Current returns the active configuration.
func (m *Manager) Current() Active {
	now, _ := m.cell.Get()
	return now
}

// Lock prevents every other activation until Unlock.
func (m *Manager) Lock() { m.mu.Lock() }

// TryLock locks like Lock, or returns false during another activation.
func (m *Manager) TryLock() bool { return m.mu.TryLock() }

// Unlock ends Lock.
func (m *Manager) Unlock() { m.mu.Unlock() }

// Store is the store of the configurations.
func (m *Manager) Store() configstore.Store { return m.deps.Store }
