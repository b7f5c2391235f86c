package extensions

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/verity"
)

const kernelRelease = "6.12.1"

// memory is a source of blobs by digest. It records the digests of the blobs that it sent.
type memory struct {
	blobs map[string][]byte
	sent  []string
}

func (m *memory) Open(_ context.Context, b artifact.Blob) (io.ReadCloser, error) {
	content, ok := m.blobs[b.SHA256]
	if !ok {
		return nil, fs.ErrNotExist
	}
	m.sent = append(m.sent, b.SHA256)
	return io.NopCloser(bytes.NewReader(content)), nil
}

func (m *memory) add(content []byte) string {
	sum := sha256.Sum256(content)
	m.blobs[hex.EncodeToString(sum[:])] = content
	return hex.EncodeToString(sum[:])
}

// fixture is a machine with a registry of extensions.
type fixture struct {
	t                    *testing.T
	dir                  string
	key                  bundle.Key
	trust                bundle.Trust
	registry             *memory
	config               *cell.Cell[*config.Config]
	loaded               []string
	overlaid             []string
	others               error  // the error of Deps.Others
	storage              string // the problem of DATA
	manager              *Manager
	mountErr, overlayErr error
	free                 int64  // free space of DATA, in bytes
	extra                string // a file of each mounted image that its statement does not name
	events               []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(text)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, dir: t.TempDir(), key: key, trust: trust, registry: &memory{blobs: map[string][]byte{}}, config: cell.New[*config.Config](nil), free: 1 << 40}
	f.boot()
	return f
}

// boot replaces the manager by a new manager, as a reboot does.
func (f *fixture) boot() {
	mounts := f.t.TempDir()
	f.loaded, f.overlaid = nil, nil
	f.manager = New(Deps{
		Store: Store{Dir: filepath.Join(f.dir, "store"), Free: func(string) (int64, error) { return f.free, nil }}, Mounts: mounts, Kernel: f, Config: f.config.View(),
		System:         func() (System, error) { return system("0.2.0"), nil },
		Release:        func() (bundle.Trust, error) { return f.trust, nil },
		Keys:           func() ([]byte, error) { return nil, fs.ErrNotExist },
		StorageProblem: func() string { return f.storage },
		Sources: func(*config.Config, config.Artifact) []Source {
			return []Source{{"control-plane machines", &memory{}}, {"registry registry.example.com", f.registry}}
		},
		Others:      func() ([]config.Artifact, error) { return nil, f.others },
		AddModules:  func(dirs []string) error { f.loaded = append(f.loaded, dirs...); return nil },
		LoadModules: func(names ...string) error { f.loaded = append(f.loaded, names...); return nil },
		Event:       func(_, message string) { f.events = append(f.events, message) },
		Console:     func(line string) { f.events = append(f.events, line) },
	})
}

func system(version string) System {
	return System{Version: version, Profile: "qemu", Kernel: kernelRelease, Has: func(path string) bool { return path == "/usr/bin/machined" }}
}

// Mount implements Kernel. In place of a mount, it creates the files of the statement, with their
// sizes, in the directory target.
func (f *fixture) Mount(image, target string, s extension.Statement) error {
	if f.mountErr != nil {
		return f.mountErr
	}
	if _, err := os.Stat(image); err != nil {
		return err
	}
	for _, one := range s.Files {
		name := filepath.Join(target, one.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(name, make([]byte, one.Size), 0o600); err != nil {
			return err
		}
	}
	if f.extra != "" {
		return os.WriteFile(filepath.Join(target, f.extra), nil, 0o600)
	}
	return nil
}

// Unmount implements Kernel.
func (f *fixture) Unmount(target string) error { return os.RemoveAll(target) }

// Overlay implements Kernel.
func (f *fixture) Overlay(targets []string) error { f.overlaid = targets; return f.overlayErr }

// publish puts an extension in the registry, and returns the name of its image.
func (f *fixture) publish(name, version string, change func(*extension.Statement)) config.Artifact {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "image")
	if err := os.WriteFile(file, bytes.Repeat([]byte(name+version), 4096), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Truncate(file, 8*4096); err != nil {
		f.t.Fatal(err)
	}
	params, err := verity.Format(file, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	image, err := os.ReadFile(file)
	if err != nil {
		f.t.Fatal(err)
	}
	s := extension.Statement{
		Name: name, Version: "1", System: version, Profile: "qemu", Kernel: kernelRelease, Root: params.String(),
		Image: bundle.Part{SHA256: f.registry.add(image), Size: int64(len(image))},
		Files: []extension.File{{Path: "/usr/bin/" + name, Size: 3, SHA256: strings.Repeat("a", 64)}},
		Load:  []string{name + "_module"},
	}
	if change != nil {
		change(&s)
	}
	envelope, err := extension.Seal(s, f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	f.registry.add(envelope)
	manifest, err := extension.Manifest(envelope, s.Image)
	if err != nil {
		f.t.Fatal(err)
	}
	return config.Artifact{Registry: "registry.example.com", Repository: name, SHA256: f.registry.add(manifest)}
}

// configure activates a configuration with these images of extensions.
func (f *fixture) configure(images ...config.Artifact) *config.Config {
	c := &config.Config{Machine: config.Machine{Spec: config.MachineSpec{Extensions: config.Extensions{Images: images}}}}
	f.config.Set(c)
	return c
}

// phases returns "NAME PHASE" of each extension.
func (f *fixture) phases() string {
	states, _ := f.manager.States().Get()
	var all []string
	for _, s := range states {
		all = append(all, strings.TrimSpace(s.Name+" "+string(s.Phase)))
	}
	return strings.Join(all, ", ")
}

// TestLife fetches extensions for two versions of the system, activates the extensions for the
// running version after a reboot, and prunes them when no configuration names them.
func TestLife(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	c := f.configure(f.publish("gvisor", "0.2.0", nil), f.publish("gvisor", "0.3.0", nil), f.publish("storage", "0.2.0", nil))
	f.manager.Activate(c)
	if got := f.phases(); got != "missing, missing, missing" {
		t.Error(got)
	}
	if lines, err := f.manager.Changes(c); err != nil || len(lines) != 3 || !strings.HasPrefix(lines[0], "fetch extension registry.example.com/gvisor@sha256:") {
		t.Error(lines, err)
	}
	if !f.manager.round(ctx, c) {
		t.Error(f.events)
	}
	if got := f.phases(); got != "gvisor pending, gvisor stored, storage pending" || f.overlaid != nil {
		t.Error(got, f.overlaid)
	}
	lines, err := f.manager.Changes(c)
	if want := []string{"activate extension gvisor 1 at the next boot", "activate extension storage 1 at the next boot"}; err != nil || !reflect.DeepEqual(lines, want) {
		t.Error(lines, err)
	}

	f.boot()
	f.manager.Activate(c)
	if got := f.phases(); got != "gvisor active, gvisor stored, storage active" || len(f.overlaid) != 2 {
		t.Error(got, f.overlaid)
	}
	if want := []string{"loop", "loop", "overlay", "gvisor_module", "storage_module"}; !slices.Equal(f.loaded, want) {
		t.Error(f.loaded)
	}
	if lines, err := f.manager.Changes(c); err != nil || len(lines) > 0 {
		t.Error("after the activation:", lines, err)
	}
	sent := len(f.registry.sent)
	if !f.manager.round(ctx, c) || len(f.registry.sent) != sent {
		t.Error("stored extensions are fetched again")
	}

	f.configure()
	none, _ := f.config.Get()
	if lines, err := f.manager.Changes(none); err != nil || len(lines) != 2 || lines[0] != "deactivate extension gvisor 1 at the next boot" {
		t.Error(lines, err)
	}
	f.others = errors.New("an upgrade is on trial")
	if f.manager.round(ctx, none) {
		t.Error("extensions are pruned, although another version may become active")
	}
	if entries, err := os.ReadDir(f.manager.deps.Store.Dir); err != nil || len(entries) != 9 {
		t.Error(entries, err)
	}
	f.others = nil
	if !f.manager.round(ctx, none) {
		t.Error("the extensions are not pruned")
	}
	if entries, err := os.ReadDir(f.manager.deps.Store.Dir); err != nil || len(entries) != 0 {
		t.Error(entries, err)
	}
	if got := f.phases(); got != "gvisor active, storage active" {
		t.Error(got)
	}
}

// TestRefused publishes extensions that a machine cannot use. It checks the reason that the machine
// reports, and that the machine does not fetch the image.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(f *fixture) config.Artifact
	}{
		{"wrong signature", "no trusted key has signed it", func(f *fixture) config.Artifact {
			other, err := bundle.NewKey()
			if err != nil {
				f.t.Fatal(err)
			}
			f.key = other
			return f.publish("x", "0.2.0", nil)
		}},
		{"unknown digest", "registry registry.example.com: does not have it", func(*fixture) config.Artifact {
			return config.Artifact{Registry: "registry.example.com", Repository: "x", SHA256: strings.Repeat("b", 64)}
		}},
		{"other profile", "it is for profile metal, and this machine runs qemu", func(f *fixture) config.Artifact {
			return f.publish("x", "0.2.0", func(s *extension.Statement) { s.Profile = "metal" })
		}},
		{"another image", "its statement describes another image than its manifest", func(f *fixture) config.Artifact {
			envelope, err := extension.Seal(statementOf(f, "x"), f.key)
			if err != nil {
				f.t.Fatal(err)
			}
			f.registry.add(envelope)
			manifest, err := extension.Manifest(envelope, bundle.Part{SHA256: strings.Repeat("c", 64), Size: 4096})
			if err != nil {
				f.t.Fatal(err)
			}
			return config.Artifact{Registry: "registry.example.com", Repository: "x", SHA256: f.registry.add(manifest)}
		}},
		{"other content", "is damaged", func(f *fixture) config.Artifact {
			image := f.publish("x", "0.2.0", nil)
			f.registry.blobs[image.SHA256] = []byte("{}")
			return image
		}},
		{"no space", "it is too large: it has 0 MiB, and DATA has 512 MiB of free space, of which 512 MiB stay free", func(f *fixture) config.Artifact {
			f.free = reserve
			return f.publish("x", "0.2.0", nil)
		}},
		{"no extension", "it is not an extension", func(f *fixture) config.Artifact {
			return config.Artifact{Registry: "registry.example.com", Repository: "x", SHA256: f.registry.add([]byte("{}"))}
		}},
	} {
		f := newFixture(t)
		image := c.do(f)
		wanted := f.configure(image)
		f.registry.sent = nil
		if f.manager.round(t.Context(), wanted) {
			t.Errorf("%s: round reports that all extensions are stored", c.name)
		}
		states, _ := f.manager.States().Get()
		if len(states) != 1 || states[0].Phase != Missing || !strings.Contains(states[0].Problem, c.want) || !strings.Contains(states[0].Problem, image.String()) {
			t.Errorf("%s: %+v", c.name, states)
		}
		if len(f.registry.sent) > 2 {
			t.Errorf("%s: other blobs than the manifest and the statement were fetched", c.name)
		}
		if entries, _ := os.ReadDir(f.manager.deps.Store.Dir); len(entries) != 0 {
			t.Errorf("%s: %v is stored", c.name, entries)
		}
		if check := Check(states); check.Ok {
			t.Errorf("%s: the health check does not fail", c.name)
		}
	}
}

// statementOf returns a valid statement of an extension that is not published.
func statementOf(f *fixture, name string) extension.Statement {
	var out extension.Statement
	f.publish(name, "0.2.0", func(s *extension.Statement) { out = *s })
	return out
}

// TestDamagedTransfer checks that an image is not stored if its bytes do not match its digest.
func TestDamagedTransfer(t *testing.T) {
	f := newFixture(t)
	s := statementOf(f, "x")
	c := f.configure(f.publish("x", "0.2.0", nil))
	f.registry.blobs[s.Image.SHA256] = []byte("short")
	if f.manager.round(t.Context(), c) || !slices.ContainsFunc(f.events, func(e string) bool { return strings.Contains(e, "does not match the digest or the size") }) {
		t.Error(f.events)
	}
	if entries, _ := os.ReadDir(f.manager.deps.Store.Dir); len(entries) != 0 {
		t.Error(entries)
	}
}

// TestDamagedStore damages a stored manifest or statement. It checks that the machine rejects an
// upgrade, and then fetches the manifest and the statement again, but not the image.
func TestDamagedStore(t *testing.T) {
	for part, name := range []string{"statement", "manifest"} {
		f := newFixture(t)
		image := f.publish("gvisor", "0.2.0", nil)
		c := f.configure(image)
		f.manager.round(t.Context(), c)
		s := f.manager.deps.Store
		statement, _, err := extension.Parts(f.registry.blobs[image.SHA256])
		if err != nil {
			t.Fatal(err)
		}
		file := s.path([]string{statement.SHA256, image.SHA256}[part])
		if err := errors.Join(os.Chmod(file, 0o600), os.WriteFile(file, []byte("{}"), 0o600)); err != nil {
			t.Fatal(err)
		}

		f.boot()
		f.registry.sent = nil
		f.manager.Activate(c)
		states, _ := f.manager.States().Get()
		if len(states) != 1 || states[0].Phase != Missing || !strings.Contains(states[0].Problem, "is damaged") || Check(states).Ok {
			t.Errorf("%s: %+v", name, states)
		}
		if err := f.manager.CheckUpgrade("0.2.0"); err == nil || !strings.Contains(err.Error(), "is not stored; wait") {
			t.Errorf("%s: %v", name, err)
		}
		if !f.manager.round(t.Context(), c) || f.phases() != "gvisor pending" || len(f.registry.sent) != 2 {
			t.Errorf("%s: %s, %d blobs were fetched, want 2; %v", name, f.phases(), len(f.registry.sent), f.events)
		}
	}
}

// TestPruneDamaged damages a stored manifest that only the stored configuration of another version
// names. It checks that the machine retains this file and does not fetch it again, and that it
// still removes the other files.
func TestPruneDamaged(t *testing.T) {
	f := newFixture(t)
	saved, former := f.publish("gvisor", "0.1.0", nil), f.publish("storage", "0.2.0", nil)
	f.manager.round(t.Context(), f.configure(saved, former))
	s := f.manager.deps.Store
	if err := errors.Join(os.Chmod(s.path(saved.SHA256), 0o600), os.WriteFile(s.path(saved.SHA256), []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	f.manager.deps.Others = func() ([]config.Artifact, error) { return []config.Artifact{saved}, nil }
	if !f.manager.round(t.Context(), f.configure()) {
		t.Error(f.events)
	}
	if entries, err := os.ReadDir(s.Dir); err != nil || len(entries) != 1 || entries[0].Name() != saved.SHA256 {
		t.Error(entries, err)
	}
}

// TestPlan plans two extensions. The first one has the name "first" and is valid. The table has the
// phase and the problem of the second one, which can be in conflict with the first.
func TestPlan(t *testing.T) {
	item := func(name, version string, change func(*extension.Statement)) Item {
		s := extension.Statement{Name: name, Version: "1", System: version, Profile: "qemu", Kernel: kernelRelease, Files: []extension.File{{Path: "/usr/bin/" + name}}}
		if change != nil {
			change(&s)
		}
		return Item{Image: config.Artifact{Registry: "r.example", Repository: name, SHA256: name}, Statement: s}
	}
	first := item("first", "0.2.0", func(s *extension.Statement) {
		s.Runtimes = []extension.Runtime{{Handler: "h"}}
		s.Services = []extension.Service{{Name: "s", User: 200}}
	})
	for _, c := range []struct {
		name  string
		item  Item
		phase Phase
		want  string
	}{
		{"another extension", item("x", "0.2.0", nil), Pending, ""},
		{"another version", item("x", "0.3.0", nil), Stored, ""},
		{"not stored", Item{Err: fmt.Errorf("image: %w", fs.ErrNotExist)}, Missing, ""},
		{"unusable", Item{Err: errors.New("wrong signature")}, Refused, "wrong signature"},
		{"another profile", item("x", "0.2.0", func(s *extension.Statement) { s.Profile = "metal" }), Refused, "extension x: it is for profile metal, and this machine runs qemu; build it with"},
		{"another kernel", item("x", "0.2.0", func(s *extension.Statement) { s.Kernel = "6.13" }), Refused, "extension x: it is for kernel 6.13, and this machine runs 6.12.1; build it again"},
		{"a file of the system", item("machined", "0.2.0", nil), Refused, "the system itself has the file /usr/bin/machined; remove it"},
		{"the same name", item("first", "0.2.0", nil), Refused, "names it twice for version 0.2.0; remove one"},
		{"the same file", item("x", "0.2.0", func(s *extension.Statement) { s.Files[0].Path = "/usr/bin/first" }), Refused, "extension first has the file /usr/bin/first, too; remove one"},
		{"a file below a file", item("x", "0.2.0", func(s *extension.Statement) { s.Files[0].Path = "/usr/bin/first/x" }), Refused, "extension first has the file /usr/bin/first, too"},
		{"a file above a file", item("x", "0.2.0", func(s *extension.Statement) { s.Files[0].Path = "/usr/bin" }), Refused, "extension first has the file /usr/bin/first, too"},
		{"a path with the same beginning", item("x", "0.2.0", func(s *extension.Statement) { s.Files[0].Path = "/usr/bin/first-x" }), Pending, ""},
		{"the same handler", item("x", "0.2.0", func(s *extension.Statement) { s.Runtimes = []extension.Runtime{{Handler: "h"}} }), Refused, "has the runtime handler h, too"},
		{"the same service", item("x", "0.2.0", func(s *extension.Statement) { s.Services = []extension.Service{{Name: "s", User: 201}} }), Refused, "its service s has the name or the user 201 of service s of extension first"},
		{"the same user", item("x", "0.2.0", func(s *extension.Statement) { s.Services = []extension.Service{{Name: "z", User: 200}} }), Refused, "its service z has the name or the user 200 of service s of extension first"},
	} {
		states := Plan([]Item{first, c.item}, system("0.2.0"))
		if states[0].Phase != Pending || states[1].Phase != c.phase || !strings.Contains(states[1].Problem, c.want) || (c.want == "") != (states[1].Problem == "") {
			t.Errorf("%s: %+v", c.name, states)
		}
		if failed := Problem(states, "0.2.0"); c.phase == Refused && c.item.Err == nil && failed == "" {
			t.Errorf("%s: Problem returns no problem, so a version on trial would be committed", c.name)
		}
	}
}

// TestCheckUpgrade checks that upgrades that would lose an extension are rejected.
func TestCheckUpgrade(t *testing.T) {
	item := func(name, version string) Item {
		return Item{Image: config.Artifact{Registry: "r.example", Repository: name, SHA256: "1"}, Statement: extension.Statement{Name: name, System: version, Profile: "qemu"}}
	}
	missing := item("x", "")
	missing.Err = fs.ErrNotExist
	refused := item("x", "")
	refused.Err = errors.New("extension x: no trusted key has signed it")
	other := item("gvisor", "0.3.0")
	other.Statement.Profile = "metal"
	for _, c := range []struct {
		name  string
		items []Item
		want  string // part of the error; empty: none
	}{
		{"no extensions", nil, ""},
		{"for both versions", []Item{item("gvisor", "0.2.0"), item("gvisor", "0.3.0")}, ""},
		{"none for the new version", []Item{item("gvisor", "0.2.0"), item("gvisor", "0.4.0")}, "extension gvisor is not stored for version 0.3.0; add its image"},
		{"another name", []Item{item("gvisor", "0.2.0"), item("storage", "0.3.0")}, "extension gvisor is not stored for version 0.3.0"},
		{"another profile", []Item{item("gvisor", "0.2.0"), other}, "extension gvisor is not stored for version 0.3.0"},
		{"only for the new version", []Item{item("gvisor", "0.3.0")}, ""},
		{"not stored yet", []Item{item("gvisor", "0.2.0"), item("gvisor", "0.3.0"), missing}, "extension r.example/x@sha256:1 is not stored; wait"},
		{"wrong signature", []Item{refused}, "no trusted key has signed it; remove it from Machine.spec.extensions.images"},
	} {
		err := CheckUpgrade(c.items, "0.2.0", "0.3.0", "qemu")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := CheckRollback([]Item{item("gvisor", "0.2.0"), missing}); err == nil {
		t.Error("a rollback to a configuration with a missing extension is permitted")
	}
}

// TestUpgradeOfMachine checks that a machine rejects an upgrade until it has stored an extension
// for the running and for the new version, and again if DATA has a problem.
func TestUpgradeOfMachine(t *testing.T) {
	f := newFixture(t)
	if err := f.manager.CheckUpgrade("0.3.0"); err != nil {
		t.Error("without a configuration:", err)
	}
	c := f.configure(f.publish("gvisor", "0.2.0", nil))
	if err := f.manager.CheckUpgrade("0.3.0"); err == nil || !strings.Contains(err.Error(), "is not stored") {
		t.Error(err)
	}
	f.manager.round(t.Context(), c)
	if err := f.manager.CheckUpgrade("0.3.0"); err == nil || !strings.Contains(err.Error(), "extension gvisor is not stored for version 0.3.0") {
		t.Error(err)
	}
	c = f.configure(append(c.Machine.Spec.Extensions.Images, f.publish("gvisor", "0.3.0", nil))...)
	f.manager.round(t.Context(), c)
	saved := config.New("m1", config.RoleWorker)
	saved.Machine.Spec.Extensions = c.Machine.Spec.Extensions
	if err := errors.Join(f.manager.CheckUpgrade("0.3.0"), f.manager.CheckRollback(config.Marshal(saved))); err != nil {
		t.Error(err)
	}
	f.storage = "DATA is damaged"
	if lines, err := f.manager.Changes(c); err != nil || len(lines) != 2 || !strings.HasPrefix(lines[0], "fetch extension ") {
		t.Error(lines, err)
	}
	if err := f.manager.CheckUpgrade("0.3.0"); err == nil || !strings.Contains(err.Error(), "DATA is damaged") {
		t.Error(err)
	}
}

// TestActivationFails checks four failures of an activation. The manager reports an extension that
// it cannot mount, and a failed overlay. It rejects an image with a file that its statement does
// not name, and it fetches a damaged image again.
func TestActivationFails(t *testing.T) {
	f := newFixture(t)
	c := f.configure(f.publish("gvisor", "0.2.0", nil))
	f.manager.round(t.Context(), c)

	f.boot()
	f.mountErr = errors.New("no loop device")
	f.manager.Activate(c)
	states, _ := f.manager.States().Get()
	if states[0].Phase == Active || !strings.Contains(states[0].Problem, "extension gvisor: cannot activate: no loop device") || f.overlaid != nil {
		t.Errorf("%+v", states)
	}
	if Problem(states, "0.2.0") == "" {
		t.Error("Problem returns no problem, so a version on trial would be committed")
	}

	f.boot()
	f.mountErr, f.overlayErr = nil, errors.New("no overlay")
	f.manager.Activate(c)
	states, _ = f.manager.States().Get()
	if states[0].Phase == Active || !strings.Contains(states[0].Problem, "cannot activate: no overlay") || len(f.manager.Active()) > 0 || Problem(states, "0.2.0") == "" {
		t.Errorf("%+v", states)
	}

	f.boot()
	f.overlayErr, f.extra = nil, "usr/bin/more"
	f.manager.Activate(c)
	states, _ = f.manager.States().Get()
	if states[0].Phase == Active || !strings.Contains(states[0].Problem, "its image has the file /usr/bin/more, which its statement does not name") {
		t.Errorf("%+v", states)
	}

	f.boot()
	f.mountErr, f.extra = errors.New("bad superblock"), ""
	s := f.manager.deps.Store
	statement, err := s.Read(c.Machine.Spec.Extensions.Images[0].SHA256, extension.Trust{Release: f.trust})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.path(statement.Image.SHA256), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(statement.Image.SHA256), make([]byte, statement.Image.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	f.manager.Activate(c)
	states, _ = f.manager.States().Get()
	if states[0].Phase != Missing || !strings.Contains(states[0].Problem, "is damaged and is fetched again") {
		t.Errorf("%+v", states)
	}
	if !f.manager.round(t.Context(), c) || f.phases() != "gvisor pending" {
		t.Error(f.phases(), f.events)
	}
}

// TestWrongRoot checks that the machine does not fetch an image again if it cannot be mounted
// because the root hash in its statement is wrong: the fetched image would be the same.
func TestWrongRoot(t *testing.T) {
	f := newFixture(t)
	c := f.configure(f.publish("x", "0.2.0", func(s *extension.Statement) { s.Root = strings.Repeat("ab", verity.HashSize) + ",8,8," }))
	f.manager.round(t.Context(), c)
	f.boot()
	f.mountErr = errors.New("bad superblock")
	f.manager.Activate(c)
	states, _ := f.manager.States().Get()
	if states[0].Phase != Pending || !strings.Contains(states[0].Problem, "cannot activate: bad superblock") {
		t.Errorf("%+v", states)
	}
}

// TestCompare checks the comparison of a mounted image with its statement.
func TestCompare(t *testing.T) {
	s := extension.Statement{Files: []extension.File{{Path: "/usr/bin/a", Size: 1}, {Path: "/usr/bin/b", Target: "a"}}}
	for _, c := range []struct {
		name, want string
		do         func(dir string) error
	}{
		{"equal", "", func(string) error { return nil }},
		{"another size", "/usr/bin/a of its image is not as in", func(dir string) error { return os.WriteFile(dir+"/usr/bin/a", nil, 0o600) }},
		{"another target", "/usr/bin/b of its image is not as in", func(dir string) error {
			return errors.Join(os.Remove(dir+"/usr/bin/b"), os.Symlink("/etc/passwd", dir+"/usr/bin/b"))
		}},
		{"setuid", "/usr/bin/a of its image is not as in", func(dir string) error { return os.Chmod(dir+"/usr/bin/a", 0o755|fs.ModeSetuid) }},
		{"missing", "its image lacks the file /usr/bin/a", func(dir string) error { return os.Remove(dir + "/usr/bin/a") }},
	} {
		dir := t.TempDir()
		err := errors.Join(os.MkdirAll(dir+"/usr/bin", 0o750), os.WriteFile(dir+"/usr/bin/a", []byte("x"), 0o600), os.Symlink("a", dir+"/usr/bin/b"), c.do(dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := compare(dir, s); (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestOverlay checks that /usr of the system is the first directory of the overlay, so its files
// hide files of extensions with the same path.
func TestOverlay(t *testing.T) {
	if m := overlay([]string{"/run/a", "/run/b"}); m.Data != "lowerdir=/usr:/run/a/usr:/run/b/usr" || m.Target != "/usr" {
		t.Error(m)
	}
}

// TestOpen checks that Open, which serves other machines, opens a stored blob by its digest, and no
// file by another name.
func TestOpen(t *testing.T) {
	f := newFixture(t)
	image := f.publish("gvisor", "0.2.0", nil)
	f.manager.round(t.Context(), f.configure(image))
	file, err := f.manager.Open(image.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", ".", "../store/" + image.SHA256, strings.Repeat("d", 64)} {
		if _, err := f.manager.Open(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
