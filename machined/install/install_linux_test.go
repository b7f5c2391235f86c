package install

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/diskprobe/diskprobetest"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/verity"
)

// fakeSystem writes the files of a small system with random content to the paths that a system in
// memory has, and returns the description of this system.
func fakeSystem(t *testing.T) System {
	t.Helper()
	if err := os.MkdirAll(paths.System, 0o755); err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{1})
	content := func(size int) []byte {
		b := make([]byte, size)
		random.Read(b) // it always fills the slice
		return b
	}
	for name, size := range map[string]int{paths.SystemRoot: 8 << 20, paths.SystemUKI: 3<<20 + 5, paths.SystemLoader: 100_001, paths.SystemStatement: 3_001} {
		if err := os.WriteFile(name, content(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := verity.Format(paths.SystemRoot, []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(paths.SystemRoot)
	if err != nil {
		t.Fatal(err)
	}
	return System{Version: "1.0.0", Root: root, RootSize: info.Size(), UKISize: 3<<20 + 5, Sizes: layout.Sizes{ESP: 64 << 20, Root: 64 << 20}}
}

func tools() Tools {
	return Tools{
		Run:     mkfstest.Run,
		Modules: func(...string) error { return nil }, // the modules are loaded in the guest
		Files: []File{
			{Name: paths.Config + "/current.yaml", Content: []byte("a: b\n")}, {Name: paths.MachineKey, Content: []byte("key")}, {Name: paths.MachineCert, Content: []byte("cert")},
		},
	}
}

// TestInstall installs on a disk with foreign data. In each attempt, the installation stops one
// operation later than before. Only after the last operation, the disk has a boot loader.
func TestInstall(t *testing.T) {
	mkfstest.Overwrites(t)
	s := fakeSystem(t)
	dirty(t)
	w := Want{Disk: Disk{Path: mkfstest.Disk, Size: 2 << 30}, System: s}
	ops := Operations(w, tools())
	for stop := 1; stop <= len(ops); stop++ {
		for _, op := range ops[:stop] {
			if err := op.Do(t.Context()); err != nil {
				t.Fatalf("stop %d: %s: %v", stop, op, err)
			}
		}
		checkBoot(t, stop == len(ops))
	}
	check(t, s)
	checkKeys(t, ops[len(ops)-1])
}

// checkKeys adds keys for Secure Boot and a configuration of the boot loader to the system. It
// checks that the last operation also writes these files.
func checkKeys(t *testing.T, writeLoader reconcile.Op) {
	t.Helper()
	files := map[string]string{esp.LoaderConfig: paths.SystemLoaderConfig}
	for _, name := range esp.KeyFiles {
		files[filepath.Join(esp.KeysDir, name)] = filepath.Join(paths.System, name)
	}
	for name, file := range files {
		if err := os.WriteFile(file, []byte("of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(file) }) // the directory is in memory
	}
	if err := writeLoader.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := mount.Mount{Source: mkfstest.Disk + "1", Target: paths.State, Type: "vfat", Flags: mount.ReadOnly}
	if err := m.Do(); err != nil {
		t.Fatal(err)
	}
	for name, file := range files {
		equal(t, filepath.Join(paths.State, name), file)
	}
	if err := mount.Unmount(paths.State); err != nil {
		t.Fatal(err)
	}
}

// dirty writes foreign data to the ranges of the disk in which other systems store their
// signatures.
func dirty(t *testing.T) {
	t.Helper()
	device, err := block.NewFromPath(mkfstest.Disk, block.OpenForWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	size, err := device.GetSize()
	if err != nil {
		t.Fatal(err)
	}
	junk := bytes.Repeat([]byte("photos! "), 1<<17)
	for _, at := range []int64{0, 1 << 20, 65 << 20, 129 << 20, 193 << 20, int64(size) - 1<<20} {
		if _, err := device.File().WriteAt(junk, at); err != nil {
			t.Fatal(err)
		}
	}
}

// checkBoot checks whether the disk has a boot loader in its ESP (want), with the code that the
// next installation uses.
func checkBoot(t *testing.T, want bool) {
	t.Helper()
	have, err := disk.Read(t.Context(), diskprobetest.ProbeInProcess)
	if err != nil {
		t.Fatal(err)
	}
	got := false
	for _, p := range have.Disks[0].Partitions {
		got = got || p.Label == layout.ESP && p.Loader
	}
	if got != want {
		t.Errorf("the disk has a boot loader: %t, want %t", got, want)
	}
}

// check reads the complete disk and compares it with the system. It reads the partition table as
// machined/disk does at the first boot.
func check(t *testing.T, s System) {
	t.Helper()
	have, err := disk.Read(t.Context(), diskprobetest.ProbeInProcess)
	if err != nil {
		t.Fatal(err)
	}
	have.Disks = have.Disks[:1]
	have.Disks[0].Boot = true
	var got []string
	seen := map[uuid.UUID]bool{}
	for _, p := range have.Disks[0].Partitions {
		got = append(got, fmt.Sprintf("%d %s %d MiB", p.Number, p.Label, p.Size>>20))
		if p.Label == layout.RootA && p.UUID != s.Root.PartUUID() {
			t.Errorf("the root has the GUID %s", p.UUID)
		}
		if p.Label != layout.RootA && (p.UUID.Version() != 4 || seen[p.UUID]) {
			t.Errorf("%s has the GUID %s, which is not random, or which another partition has, too", p.Label, p.UUID)
		}
		seen[p.UUID] = true
	}
	if want := "[1 ESP 64 MiB 2 ROOT-A 64 MiB 3 ROOT-B 64 MiB 4 STATE 256 MiB]"; fmt.Sprint(got) != want {
		t.Errorf("partitions %v", got)
	}
	want, err := disk.Plan(disk.Config{}, have)
	if err != nil {
		t.Fatal(err)
	}
	first := fmt.Sprint(disk.Diff(have, want, nil))
	if strings.Contains(first, "GUIDs") || !strings.Contains(first, "add 5 DATA") || !strings.Contains(first, "check STATE") || strings.Contains(first, "format STATE") {
		t.Errorf("the operations of the first boot: %s", first)
	}
	if err := verity.Verify(mkfstest.Disk+"2", s.Root); err != nil {
		t.Error(err)
	}
	for _, part := range []struct {
		source, kind string
		files        map[string]string // path to the file with the expected content
	}{
		{mkfstest.Disk + "4", "ext4", nil},
		{mkfstest.Disk + "1", "vfat", map[string]string{
			esp.Loader: paths.SystemLoader, filepath.Join(slot.EntriesDir, slot.Entry{Version: "1.0.0"}.Name()): paths.SystemUKI,
			esp.Statement("1.0.0"): paths.SystemStatement,
		}},
	} {
		m := mount.Mount{Source: part.source, Target: paths.State, Type: part.kind, Flags: mount.ReadOnly}
		if err := m.Do(); err != nil {
			t.Fatal(err)
		}
		for name, same := range part.files {
			equal(t, filepath.Join(paths.State, name), same)
		}
		if part.kind == "ext4" {
			for _, f := range tools().Files {
				if got, err := os.ReadFile(f.Name); err != nil || !bytes.Equal(got, f.Content) {
					t.Errorf("%s: %q, %v", f.Name, got, err)
				}
			}
		} else if got, err := os.ReadFile(filepath.Join(paths.State, esp.LoaderConfig)); err != nil || string(got) != esp.LoaderConfigText {
			t.Errorf("configuration of the boot loader: %q, %v", got, err)
		}
		if err := mount.Unmount(paths.State); err != nil {
			t.Fatal(err)
		}
	}
}

func equal(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Errorf("%s and %s have different content", a, b)
	}
}
