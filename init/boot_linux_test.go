package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	initramfs "github.com/orlop-os/orlop/imager/boot"
	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
	"github.com/orlop-os/orlop/pkg/verity"
	"github.com/orlop-os/orlop/vm"
)

const (
	mib = 1 << 20
	// rootSize is the size of each slot on the test's disk, in bytes.
	rootSize = 64 * mib
)

// kernelDir returns the paths of the product kernel and of its modules. ORLOP_KERNEL names their
// directory: build/qemu/kernel, or an unpacked Debian package. The test boots machines of its own,
// because init is the first process of a machine.
func kernelDir(t *testing.T) (image, modules string) {
	t.Helper()
	dir := os.Getenv("ORLOP_KERNEL")
	if dir == "" {
		t.Skip("needs the product kernel: make kernel, or set ORLOP_KERNEL to build/qemu/kernel or an unpacked Debian kernel package")
	}
	one := func(patterns ...string) string {
		for _, p := range patterns {
			if found, err := filepath.Glob(filepath.Join(dir, p)); err == nil && len(found) == 1 {
				return found[0]
			}
		}
		t.Fatalf("ORLOP_KERNEL=%s: holds none of %v", dir, patterns)
		return ""
	}
	return one("vmlinuz", "boot/vmlinuz-*"), one("modules/*", "lib/modules/*", "usr/lib/modules/*")
}

// machineParts are the files with which every machine of the test boots.
type machineParts struct {
	dir, kernel, initrd, disk string
	params                    verity.Params
}

// waits is the expected end of a machine that shows a problem and waits for an operator. TestSearch
// checks the duration of the wait.
const waits = "waits"

// TestBoot boots virtual machines with this init and a program that replaces machined.
func TestBoot(t *testing.T) {
	kernel, modules := kernelDir(t)
	p := makeParts(t, kernel, modules)
	sound := "orlop.root=" + p.params.String()
	for _, c := range []struct {
		name    string
		cmdline string
		damage  int64    // offset in ROOT-A of the byte to flip; -1: no damage
		list    []string // content of modules.list; nil: the usual list
		sata    bool     // the disk is on AHCI, for which modules.list has no driver
		memory  bool     // the machine has no disk, and the root is in the initramfs
		twice   bool     // a second disk has the same root
		slot    string   // label of the partition with the root
		want    []string // regular expressions for the console, in any order
		end     string   // reason for which QEMU ended; "watchdog" is a reset without a panic
	}{
		{name: "root in A", cmdline: sound, damage: -1, slot: "ROOT-A", end: "guest-shutdown", want: []string{
			`fake: pid 1 slot A medium  watchdog "\d+" started "\d+" stdout <nil>`, `fake: standard output works`, `fake: group <nil> 0::/orlop/machined`,
			`mounts <nil> devtmpfs /dev devtmpfs rw,nosuid,noexec,.*; /dev/dm-0 / erofs ro,nosuid,nodev,`,
			`root <nil> \[- big d dev/ d proc/ d run/ d sys/ d usr/\]`, `write open /usr/new: read-only file system`, `read 30000000 bytes, <nil>`}},
		{name: "root in B", cmdline: sound, damage: -1, slot: "ROOT-B", end: "guest-shutdown", want: []string{`fake: pid 1 slot B `, `read 30000000 bytes, <nil>`}},
		{name: "disk that needs another driver", cmdline: sound, damage: -1, slot: "ROOT-A", sata: true, end: "guest-shutdown", want: []string{`read 30000000 bytes, <nil>`}},
		{name: "two disks with the root, and no firmware that says which was booted", cmdline: sound, damage: -1, slot: "ROOT-A", twice: true, end: waits, want: []string{
			`orlop: init: cannot tell the system disk: it is not known which disk was booted .*: /dev/vda \(256 MiB, serial disk0\), /dev/vdb \(256 MiB, serial disk1\)`}},
		{name: "root in memory", cmdline: sound + " orlop.medium=memory", damage: -1, memory: true, end: "guest-shutdown", want: []string{
			`fake: pid 1 slot  medium memory `, `; /dev/dm-0 / erofs ro,nosuid,nodev,.*; rootfs /run/orlop/system rootfs ro,nosuid,nodev,noexec`, `read 30000000 bytes, <nil>`}},
		{name: "byte flipped in a root in memory", cmdline: sound + " orlop.medium=memory", damage: 12 * mib, memory: true, end: "guest-reset", want: []string{
			`verity: .*: data block 3072 is corrupted`, `Kernel panic - not syncing: dm-verity device corrupted`}},
		{name: "no root in the initramfs", cmdline: sound + " orlop.medium=memory", damage: -1, slot: "ROOT-A", end: "guest-reset", want: []string{
			`orlop: init: cannot boot: the boot image does not contain the root: open /system/root.img`}},
		{name: "byte flipped in a file", cmdline: sound, damage: 12 * mib, slot: "ROOT-A", end: "guest-reset", want: []string{
			`verity: .*: data block 3072 is corrupted`, `Kernel panic - not syncing: dm-verity device corrupted`}},
		{name: "byte flipped in the superblock", cmdline: sound, damage: 1030, slot: "ROOT-A", end: "guest-reset", want: []string{`dm-verity device corrupted`}},
		{name: "byte flipped in the hash tree", cmdline: sound, damage: int64(p.params.HashStart*verity.BlockSize) + 5, slot: "ROOT-A", end: "guest-reset", want: []string{`dm-verity device corrupted`}},
		{name: "no root given", cmdline: "", damage: -1, slot: "ROOT-A", end: "guest-reset", want: []string{
			`orlop: init: cannot boot: kernel command line has no orlop.root= argument`}},
		{name: "root of another image", cmdline: sound[:len("orlop.root=")] + "ffff" + p.params.String()[4:], damage: -1, slot: "ROOT-A", end: "guest-reset", want: []string{
			`orlop: init: cannot boot: no partition has the GUID ffff.* of the root after 30s; seen: vda, vda1 \(ESP\), vda2 \(ROOT-A\), vda3 \(ROOT-B\)`}},
		{name: "slot without its label", cmdline: sound, damage: -1, slot: "ROOT-C", end: "guest-reset", want: []string{
			`orlop: init: cannot boot: /dev/vda2: is labelled "ROOT-C", ROOT-A or ROOT-B expected`}},
		{name: "module missing", cmdline: sound, damage: -1, slot: "ROOT-A", list: []string{"nonesuch"}, end: "guest-reset", want: []string{
			`orlop: init: cannot boot: kernel module nonesuch: no such module in /usr/lib/modules/`}},
		{name: "machined hangs", cmdline: sound + " fake=hang", damage: -1, slot: "ROOT-A", end: "watchdog", want: []string{`fake: pid 1`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The machine has one processor. With two, the emulator occasionally runs an
			// instruction that the kernel has just replaced, and the kernel crashes before init
			// starts (an int3 in sched_clock_cpu). no_timer_check is set because, on a busy host,
			// the kernel mistakes late timer interrupts for broken hardware.
			spec := vm.MachineSpec{Name: "init", Dir: t.TempDir(), MemoryMiB: 512, CPUs: 1, Watchdog: true, QEMU: vm.QEMU{NoReboot: true},
				Kernel: vm.Kernel{Image: p.kernel, Initrd: p.initrd, Append: "console=ttyS0 panic=1 quiet no_timer_check " + c.cmdline}}
			if c.list != nil {
				spec.Kernel.Initrd = makeInitramfs(t, modules, c.list)
			}
			if c.memory {
				spec.Kernel.Initrd = appendRoot(t, p, c.damage)
			} else {
				spec.Disks = []vm.Disk{{Image: makeDisk(t, p, c.slot, c.damage), SizeMiB: 256}}
			}
			if c.twice {
				spec.Disks = append(spec.Disks, vm.Disk{Image: makeDisk(t, p, c.slot, c.damage), SizeMiB: 256})
			}
			if c.sata {
				spec.Disks[0].Bus = vm.BusSATA
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			m, err := vm.Start(ctx, spec)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if c.end == waits {
				if _, err := m.WaitConsole(ctx, regexp.MustCompile(c.want[0])); err != nil || !m.Running() {
					t.Fatalf("running %t: %v\n%s", m.Running(), err, m.Console())
				}
				return
			}
			exit, err := m.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			console := m.Console().String()
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(console) {
					t.Errorf("the console has no line with %s", want)
				}
			}
			if c.end == "watchdog" {
				if exit.Reason != "guest-reset" || exit.Ran < watchdog.Timeout || strings.Contains(console, "panic") {
					t.Errorf("the machine ended with %s, want a reset by the watchdog after %s", exit, watchdog.Timeout)
				}
			} else if exit.Reason != c.end {
				t.Errorf("the machine ended with %s, want %s", exit, c.end)
			}
			if t.Failed() {
				t.Logf("console:\n%s", console)
			}
		})
	}
}

// makeParts builds init, the root with the replacement for machined, its hash tree and the
// initramfs.
func makeParts(t *testing.T, kernel, modules string) machineParts {
	t.Helper()
	p := machineParts{dir: t.TempDir(), kernel: kernel}
	root := filepath.Join(p.dir, "root")
	for _, dir := range []string{"dev", "proc", "sys", "run", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "go", "build", "-o", filepath.Join(root, "usr/bin/machined"), "./testdata/machined")
	noise := make([]byte, 30_000_000)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(noise); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "big"), noise, 0o600); err != nil {
		t.Fatal(err)
	}
	p.disk = filepath.Join(p.dir, "root.img")
	command(t, "mkfs.erofs", "-zlz4", p.disk, root)
	var err error
	if p.params, err = verity.Format(p.disk, []byte("salt")); err != nil {
		t.Fatal(err)
	}
	p.initrd = makeInitramfs(t, modules, []string{"dm-verity", "erofs", "virtio_blk", "i6300esb"})
	return p
}

// makeInitramfs writes an initramfs with init, a modules.list, and the modules that the tests use.
// The drivers of SATA disks are in it, but not in the list.
func makeInitramfs(t *testing.T, modules string, list []string) string {
	t.Helper()
	dir := t.TempDir()
	content := filepath.Join(dir, "content")
	release := filepath.Base(modules)
	target := filepath.Join(content, "usr/lib/modules", release)
	for _, d := range []string{target, filepath.Join(content, "usr/lib/orlop")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(content, "init"), ".")
	for _, wanted := range []string{"dm-verity", "dm-bufio", "dm-mod", "reed_solomon", "erofs", "libcrc32c", "loop", "virtio_blk", "i6300esb", "watchdog",
		"ahci", "libahci", "libata", "scsi_mod", "scsi_common", "sd_mod"} {
		copyModule(t, modules, target, wanted)
	}
	if err := os.WriteFile(filepath.Join(content, "usr/lib/orlop/modules.list"), []byte(strings.Join(list, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	// depmod reads <basedir>/lib/modules.
	if err := os.Symlink("usr/lib", filepath.Join(content, "lib")); err != nil {
		t.Fatal(err)
	}
	command(t, "depmod", "-b", content, release)
	initrd := filepath.Join(dir, "initrd")
	archive, err := initramfs.Initramfs(entries(t, content))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(initrd, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	return initrd
}

// entries returns the files of a directory as entries of an initramfs.
func entries(t *testing.T, dir string) []initramfs.Entry {
	t.Helper()
	var list []initramfs.Entry
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := initramfs.Entry{Name: name, Mode: info.Mode()}
		switch {
		case d.IsDir():
		case d.Type() == os.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			e.Content = []byte(target)
		default:
			if e.Content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		list = append(list, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// copyModule copies the file NAME.ko or NAME.ko.xz of a module. If the module is built into the
// kernel, there is no file, and copyModule does nothing.
func copyModule(t *testing.T, from, to, name string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base, _, _ := strings.Cut(entry.Name(), ".")
		if entry.IsDir() || strings.ReplaceAll(base, "-", "_") != strings.ReplaceAll(name, "-", "_") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, entry.Name()), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// makeDisk writes a disk image with the root in a slot. For the slot ROOT-C, slot A gets the wrong
// label ROOT-C. damage is the offset of the byte to flip; with -1, makeDisk flips no byte.
func makeDisk(t *testing.T, p machineParts, slot string, damage int64) string {
	t.Helper()
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := disk.Truncate(256 * mib); err != nil {
		t.Fatal(err)
	}
	device, err := gpt.DeviceFromFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	table, err := gpt.New(device)
	if err != nil {
		t.Fatal(err)
	}
	kind := uuid.MustParse("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
	labels := []string{"ESP", "ROOT-A", "ROOT-B"}
	if slot == "ROOT-C" {
		labels[1] = slot
	}
	for _, label := range labels {
		id := uuid.New()
		if label == slot {
			id = p.params.PartUUID()
		}
		_, part, err := table.AllocatePartition(rootSize, label, kind, gpt.WithUniqueGUID(id))
		if err != nil {
			t.Fatal(err)
		}
		if label == slot {
			writeRoot(t, disk, p.disk, int64(part.FirstLBA)*512, damage)
		}
	}
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	return disk.Name()
}

// appendRoot writes an initramfs that also contains the root.
func appendRoot(t *testing.T, p machineParts, damage int64) string {
	t.Helper()
	system, err := initramfs.Initramfs([]initramfs.Entry{
		{Name: "system", Mode: os.ModeDir | 0o755}, {Name: "system/root.img", Mode: 0o644, Content: readRoot(t, p.disk, damage)},
	})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile(p.initrd)
	if err != nil {
		t.Fatal(err)
	}
	both := filepath.Join(t.TempDir(), "initrd")
	if err := os.WriteFile(both, append(plain, system...), 0o600); err != nil {
		t.Fatal(err)
	}
	return both
}

// readRoot reads the image of the root, and flips the byte at damage if damage is not negative.
func readRoot(t *testing.T, image string, damage int64) []byte {
	t.Helper()
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if damage >= 0 {
		b[damage] ^= 1
	}
	return b
}

func writeRoot(t *testing.T, disk *os.File, image string, at, damage int64) {
	t.Helper()
	b := readRoot(t, image, damage)
	if _, err := io.Copy(io.NewOffsetWriter(disk, at), bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, output)
	}
}
