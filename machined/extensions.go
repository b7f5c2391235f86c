package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/extensions"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/paths"
)

// newExtensions makes the manager of the extensions. Its functions use packages that are made
// later.
func newExtensions(m *machine) *extensions.Manager {
	own := newOwnFiles("/usr")
	return extensions.New(extensions.Deps{
		Store:  extensions.Store{Dir: paths.Extensions, Free: upgrade.FreeSpace},
		Mounts: paths.ExtensionMounts,
		Kernel: extensions.Linux(),
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) *config.Config { return now.Config }),
		System: func() (extensions.System, error) {
			kernel, err := kmod.Release()
			return extensions.System{Version: m.system.release.Version, Profile: m.system.release.Profile, Kernel: kernel, Has: own.has}, err
		},
		Release:        func() (bundle.Trust, error) { return m.upgrade.Receiver.ReleaseKeys() },
		Keys:           func() ([]byte, error) { return os.ReadFile(paths.ExtensionKeys) },
		StorageProblem: m.domains.disks.StorageProblem,
		Sources: func(c *config.Config, image config.Artifact) []extensions.Source {
			return extensionSources(m, c, image)
		},
		Others:      func() ([]config.Artifact, error) { return otherExtensions(m) },
		AddModules:  m.system.kernel.AddModules,
		LoadModules: m.system.kernel.LoadModules,
		Event:       m.reports.events.From("extensions"),
		Console:     m.reports.events.LogConsole,
	})
}

// ownFiles are the files of the system below a directory, also after a mount of extensions on it.
type ownFiles struct {
	dir  string
	root *os.Root
	err  error
}

func newOwnFiles(dir string) ownFiles {
	root, err := os.OpenRoot(dir)
	return ownFiles{dir, root, err}
}

// has reports whether the system has a file at a path, or cannot have another there.
func (o ownFiles) has(name string) bool {
	below, ok := strings.CutPrefix(name, o.dir+"/")
	if !ok || o.err != nil {
		return true
	}
	_, err := o.root.Lstat(below)
	return !errors.Is(err, fs.ErrNotExist)
}

// extensionSources returns the places that can have an image, in order.
func extensionSources(m *machine, c *config.Config, image config.Artifact) []extensions.Source {
	imported, peers := m.images.Sources()
	var all []extensions.Source
	if containerdReady(m.processes.services) == nil {
		all = append(all, extensions.Source{Name: "imported images", From: imported})
	}
	if c.Cluster != nil {
		all = append(all, extensions.Source{Name: "control-plane machines", From: peers})
	}
	from, err := upgrade.RegistrySource(c, nodeplan.Egress(c), image.String()).Artifact()
	if err != nil {
		from = unusable{err}
	}
	return append(all, extensions.Source{Name: "registry " + image.Registry, From: from})
}

// otherExtensions returns the extensions of the configuration with which the version of the other
// slot would start. An error means that another configuration may become active.
func otherExtensions(m *machine) (all []config.Artifact, err error) {
	if m.config.active.Current().OnTrial() || !m.config.active.Store().Staged().IsZero() {
		return nil, errors.New("another configuration may become active")
	}
	if err := m.upgrade.Controller.Record().Undecided(); err != nil {
		return nil, err
	}
	saved, err := upgrade.Store{Dir: paths.Upgrade}.SavedConfigurations()
	for _, documents := range saved {
		c, problems := config.Parse("saved configuration", documents)
		if err := problems.Err(); err != nil {
			return nil, err
		}
		all = append(all, c.Machine.Spec.Extensions.Images...)
	}
	return all, err
}

// checkSavedExtensions returns an error if an extension of saved documents (nil for none) is
// missing.
func checkSavedExtensions(m *machine, documents []byte) error {
	if len(documents) == 0 {
		return nil
	}
	c, problems := config.Parse("saved configuration", documents)
	if problems.Err() != nil {
		return nil // the other version reads it, and reports the problem
	}
	return m.domains.extensions.CheckRollback(c)
}

// stepExtensions activates the stored extensions, before the network: they may have its drivers.
// A problem is reported, and the boot continues.
func stepExtensions(_ context.Context, m *machine) error {
	now := m.config.active.Current()
	if m.system.inMemory() || now.Config == nil {
		return nil
	}
	m.domains.extensions.Activate(now.Config)
	for _, e := range m.domains.extensions.Active() {
		for _, s := range e.Services {
			if err := makeExtensionState(s); err != nil {
				m.reports.events.LogConsole(fmt.Sprintf("extension %s: cannot create the directory of %s: %v", e.Name, s.Name, err))
			}
		}
	}
	return nil
}

// makeExtensionState makes the directory that a service requests on DATA. It can be repeated.
func makeExtensionState(s extension.Service) error {
	if !s.State {
		return nil
	}
	dir := nodeplan.ExtensionState(s)
	if err := os.MkdirAll(paths.ExtensionState, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(dir, int(s.User), int(s.User))
}

// unusable is a source that cannot be used.
type unusable struct{ err error }

// Open implements artifact.Source.
func (u unusable) Open(context.Context, artifact.Blob) (io.ReadCloser, error) { return nil, u.err }
