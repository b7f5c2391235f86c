package extensions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Deps is the environment of a Manager.
type Deps struct {
	Store Store
	// Mounts is the directory for the mounts of the images.
	Mounts string
	Kernel Kernel
	// Config is the active configuration; nil if there is none.
	Config cell.View[*config.Config]
	System func() (System, error)
	// Release returns the keys that may sign versions and extensions. Keys returns the keys that
	// may sign only extensions, in PEM. Both are in the image of the system, and are empty if it
	// has no keys.
	Release func() (bundle.Trust, error)
	Keys    func() ([]byte, error)
	// StorageProblem returns why the store cannot be used; empty if DATA is mounted.
	StorageProblem func() string
	// Sources returns the places to search for an image, in order.
	Sources func(c *config.Config, image config.Artifact) []Source
	// Others returns the images of configurations that may become active again, or an error if
	// these configurations are unknown at present. After an error, the manager prunes nothing.
	Others func() ([]config.Artifact, error)
	// AddModules makes the modules of these directories known to the module loader, and loads the
	// drivers for devices that have no driver. LoadModules loads modules.
	AddModules  func(dirs []string) error
	LoadModules func(names ...string) error
	Event       func(kind, message string)
	Console     func(line string)
}

// Manager provides the extensions of a machine. All methods are safe for concurrent use.
type Manager struct {
	deps   Deps
	states *cell.Cell[[]State]

	mu           sync.Mutex
	active       []extension.Statement // set by Activate
	activeStates []State               // the states of active, in the same order
	failed       map[string]string     // why the last fetch or activation failed, by image
}

// New returns the manager of a machine. It reads no file.
func New(d Deps) *Manager {
	return &Manager{deps: d, states: cell.New([]State{}), failed: map[string]string{}}
}

// States returns the states of the extensions.
func (m *Manager) States() *cell.Cell[[]State] { return m.states }

// Active returns the extensions that take effect until the next boot.
func (m *Manager) Active() []extension.Statement {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.active)
}

// Open opens a file of the store by its digest, for another machine.
func (m *Manager) Open(sum string) (io.ReadCloser, error) {
	if m.deps.StorageProblem() != "" {
		return nil, fs.ErrNotExist
	}
	return m.deps.Store.Open(sum)
}

// images returns the images of the extensions of a configuration (nil for none).
func images(c *config.Config) []config.Artifact {
	if c == nil {
		return nil
	}
	return c.Machine.Spec.Extensions.Images
}

// trust returns the keys that a configuration (nil for none) and this image trust.
func (m *Manager) trust(c *config.Config) (t extension.Trust, err error) {
	if t.Release, err = m.deps.Release(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	text, err := m.deps.Keys()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	if c != nil {
		for _, k := range c.Machine.Spec.Extensions.Keys {
			text = append(text, k.PEM()...)
		}
	}
	if len(text) == 0 {
		return t, nil
	}
	t.Keys, err = bundle.ParseTrust(text)
	return t, err
}

// items reads the extensions of a configuration (nil for none) from the store.
func (m *Manager) items(c *config.Config) ([]Item, error) {
	wanted := images(c)
	if len(wanted) == 0 {
		return nil, nil
	}
	if why := m.deps.StorageProblem(); why != "" {
		return nil, fmt.Errorf("extensions: nothing is stored: %s", why)
	}
	trust, err := m.trust(c)
	if err != nil {
		return nil, fmt.Errorf("extensions: %w", err)
	}
	var all []Item
	for _, image := range wanted {
		s, err := m.deps.Store.Read(image.SHA256, trust)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("extension %s: %w", image, err)
		}
		all = append(all, Item{Image: image, Statement: s, Err: err})
	}
	return all, nil
}

// Activate activates the stored extensions of a configuration (nil for none), at boot. It reports
// problems as states and events; the other extensions take effect nevertheless.
func (m *Manager) Activate(c *config.Config) {
	if err := m.activate(c); err != nil {
		m.deps.Console(err.Error())
	}
	m.refresh(c)
}

func (m *Manager) activate(c *config.Config) error {
	items, err := m.items(c)
	if err != nil || len(items) == 0 {
		return err
	}
	on, err := m.deps.System()
	if err != nil {
		return err
	}
	var mounted []extension.Statement
	var states []State
	var targets []string
	for n, s := range Plan(items, on) {
		if s.Phase != Pending {
			continue
		}
		statement, target := items[n].Statement, filepath.Join(m.deps.Mounts, s.Name)
		if err := m.mount(statement, target); err != nil {
			m.fail(s.Image, fmt.Sprintf("extension %s: cannot activate: %v", s.Name, err))
			continue
		}
		s.Phase = Active
		mounted, states, targets = append(mounted, statement), append(states, s), append(targets, target)
	}
	if len(mounted) == 0 {
		return nil
	}
	err = m.deps.LoadModules("overlay")
	if err == nil {
		err = m.deps.Kernel.Overlay(targets)
	}
	if err != nil {
		for _, s := range states {
			m.fail(s.Image, fmt.Sprintf("extension %s: cannot activate: %v", s.Name, err))
		}
		return fmt.Errorf("extensions: cannot activate: %w", err)
	}
	m.mu.Lock()
	m.active, m.activeStates = mounted, states
	m.mu.Unlock()
	m.loadModules(mounted)
	return nil
}

// mount mounts an extension and compares it with its statement.
func (m *Manager) mount(s extension.Statement, target string) error {
	if err := m.deps.LoadModules("loop"); err != nil {
		return err
	}
	image := m.deps.Store.path(s.Image.SHA256)
	err := m.deps.Kernel.Mount(image, target, s)
	if err == nil {
		if err = compare(target, s); err == nil {
			return nil
		}
		err = errors.Join(err, m.deps.Kernel.Unmount(target))
	}
	// The cause can be a damaged image. It is deleted, and Run fetches the image again.
	if sum, _, wrong := safefile.SHA256(image); wrong != nil || sum != s.Image.SHA256 {
		return errors.Join(fmt.Errorf("its stored image is damaged and is fetched again: %w", err), m.deps.Store.Drop(s.Image.SHA256))
	}
	return err
}

// loadModules makes the modules of active extensions known to the loader, and loads them. A failure
// is a problem of the extension; its other parts stay active.
func (m *Manager) loadModules(active []extension.Statement) {
	var dirs []string
	for _, s := range active {
		if s.HasModules() {
			dirs = append(dirs, extension.ModulesDir(s.Name, s.Kernel))
		}
	}
	if len(dirs) > 0 {
		if err := m.deps.AddModules(dirs); err != nil {
			m.deps.Event("failure", err.Error())
		}
	}
	for i, s := range active {
		m.deps.Event("operation", fmt.Sprintf("activated extension %s: %d files", s, len(s.Files)))
		if len(s.Load) == 0 {
			continue
		}
		if err := m.deps.LoadModules(s.Load...); err != nil {
			m.mu.Lock()
			m.activeStates[i].Problem = fmt.Sprintf("extension %s: %v", s.Name, err)
			m.mu.Unlock()
			m.deps.Event("failure", err.Error())
		}
	}
}

// fail records why an extension failed. If the reason is new, fail adds an event. An empty reason
// deletes the record.
func (m *Manager) fail(image, why string) {
	m.mu.Lock()
	known := m.failed[image] == why
	if m.failed[image] = why; why == "" {
		delete(m.failed, image)
	}
	m.mu.Unlock()
	if !known && why != "" {
		m.deps.Event("failure", why)
	}
}

// refresh publishes the states of a configuration (nil for none), and returns the items.
func (m *Manager) refresh(c *config.Config) []Item {
	items, states := m.describe(c)
	if have, _ := m.states.Get(); !slices.Equal(have, states) {
		m.states.Set(states)
	}
	return items
}

// describe returns the items of a configuration and their states.
func (m *Manager) describe(c *config.Config) ([]Item, []State) {
	items, err := m.items(c)
	on, err2 := m.deps.System()
	if err := errors.Join(err, err2); err != nil {
		states := []State{}
		for _, image := range images(c) {
			states = append(states, State{Image: image.String(), Phase: Missing, Problem: err.Error()})
		}
		return nil, states
	}
	states := append([]State{}, Plan(items, on)...)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range states {
		if why := m.failed[s.Image]; why != "" {
			states[i].Problem = why
		}
	}
	// An active extension stays active until the next boot, even if the configuration does not name
	// it any more.
	for _, a := range m.activeStates {
		if i := slices.IndexFunc(states, func(s State) bool { return s.Image == a.Image }); i >= 0 {
			states[i] = a
		} else {
			states = append(states, a)
		}
	}
	return items, states
}

// Changes returns the operations that lead to a configuration, for a dry run. Without storage, the
// result contains the fetch of every extension, because the machine fetches all of them once it has
// storage.
func (m *Manager) Changes(c *config.Config) ([]string, error) {
	var items []Item
	var err error
	if m.deps.StorageProblem() == "" {
		items, err = m.items(c)
	} else {
		for _, image := range images(c) {
			items = append(items, Item{Image: image, Err: fs.ErrNotExist})
		}
	}
	if err != nil {
		return nil, err
	}
	on, err := m.deps.System()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	active := slices.Clone(m.activeStates)
	m.mu.Unlock()
	return Changes(items, on, active), nil
}

// CheckUpgrade returns an error if an upgrade to a version would lose an extension of the active
// configuration.
func (m *Manager) CheckUpgrade(to string) error {
	c, _ := m.deps.Config.Get()
	items, err := m.items(c)
	if err != nil || len(items) == 0 {
		return err
	}
	on, err := m.deps.System()
	if err != nil {
		return err
	}
	return CheckUpgrade(items, on.Version, to, on.Profile)
}

// CheckRollback returns an error if an extension of saved documents (nil for none) is not stored.
// It accepts documents that this version cannot read: the other version reads them and reports the
// problem.
func (m *Manager) CheckRollback(documents []byte) error {
	if len(documents) == 0 {
		return nil
	}
	saved, err := parseSaved(documents)
	if err != nil {
		return nil
	}
	items, err := m.items(saved)
	if err != nil {
		return err
	}
	return CheckRollback(items)
}

const (
	minRetry = 5 * time.Second
	maxRetry = 2 * time.Minute
)

// Run fetches the missing extensions of the active configuration until ctx ends. It also prunes the
// extensions that no configuration needs.
func (m *Manager) Run(ctx context.Context) {
	failures := 0
	for configs := m.deps.Config.Watch(); ; {
		c := configs.Current()
		complete := m.round(ctx, c)
		var again <-chan time.Time
		if complete {
			failures = 0
		} else {
			failures++
			again = time.After(backoff.Backoff{Min: minRetry, Max: maxRetry}.Delay(failures))
		}
		select {
		case <-again:
		case <-configs.Changed():
			failures = 0
		case <-ctx.Done():
			return
		}
	}
}

// round fetches the missing extensions of a configuration once, and then prunes. It returns false
// if Run has to retry. It returns true without a configuration or without storage.
func (m *Manager) round(ctx context.Context, c *config.Config) bool {
	items := m.refresh(c)
	if c == nil || m.deps.StorageProblem() != "" {
		return true
	}
	complete := true
	for _, i := range items {
		if !i.absent() {
			continue
		}
		if err := m.fetch(ctx, c, i.Image); err != nil {
			complete = false
			m.fail(i.Image.String(), err.Error())
		} else {
			m.fail(i.Image.String(), "")
			m.deps.Event("operation", "stored extension "+i.Image.String())
		}
		m.refresh(c)
	}
	return m.prune(c) && complete
}

func (m *Manager) fetch(ctx context.Context, c *config.Config, image config.Artifact) error {
	trust, err := m.trust(c)
	if err != nil {
		return err
	}
	on, err := m.deps.System()
	if err != nil {
		return err
	}
	return m.deps.Store.fetch(ctx, image, trust, on.Profile, m.deps.Sources(c, image))
}

// prune deletes the extensions that no configuration needs: neither c nor a configuration that may
// become active again (Deps.Others). It returns true on success.
func (m *Manager) prune(c *config.Config) bool {
	others, err := m.deps.Others()
	if err != nil {
		return false
	}
	var keep []string
	for _, image := range slices.Concat(images(c), others) {
		keep = append(keep, image.SHA256)
	}
	dropped, err := m.deps.Store.Prune(keep)
	if err != nil {
		m.deps.Event("failure", err.Error())
	} else if dropped > 0 {
		m.deps.Event("operation", fmt.Sprintf("pruned extensions that no configuration names: %d files", dropped))
	}
	return err == nil
}
