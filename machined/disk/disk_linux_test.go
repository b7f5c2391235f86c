package disk

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/diskprobe/diskprobetest"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// TestScenariosOnRealDisk runs the scenarios on a real disk. The facts that are read from the
// kernel must lead to the operations of the golden files. No operation may remain afterwards, or
// after a reboot.
func TestScenariosOnRealDisk(t *testing.T) {
	mkfstest.Overwrites(t)
	for _, s := range scenarios {
		if s.disk.absent {
			continue // a disk cannot be unplugged here; laws_test.go covers it
		}
		t.Run(s.name, func(t *testing.T) {
			build(t, s)
			have := facts(t, s)
			want, err := Plan(s.config, have)
			ops := Diff(have, want, mkfstest.Run)
			golden.Assert(t, printed(ops, err), s.name+".txt")
			if err != nil {
				return
			}
			for _, op := range ops {
				began := time.Now()
				do(t, op)
				t.Logf("%4d ms  %s", time.Since(began).Milliseconds(), op)
			}
			if left := Diff(facts(t, s), want, mkfstest.Run); len(left) > 0 {
				t.Errorf("these operations remain:\n%s", printed(left, nil))
			}
			checkVolumes(t, s)
		})
	}
}

// TestStopAfterEachOperation stops after each operation, reboots, and continues. No operation may
// remain afterwards.
func TestStopAfterEachOperation(t *testing.T) {
	mkfstest.Overwrites(t)
	for _, name := range []string{"first boot", "first boot of a flashed image", "disk has grown", "second disk with MBR, wipe"} {
		s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })]
		for stop := 1; ; stop++ {
			build(t, s)
			have := facts(t, s)
			want, err := Plan(s.config, have)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			ops := Diff(have, want, mkfstest.Run)
			if stop > len(ops) {
				break
			}
			for _, op := range ops[:stop] {
				do(t, op)
				do(t, op) // every operation is safe to repeat
			}
			unmount(t)
			settle(t, s)
			if left := Diff(facts(t, s), want, mkfstest.Run); len(left) > 0 {
				t.Errorf("%s, stopped after %s: these operations remain:\n%s", name, ops[stop-1], printed(left, nil))
			}
			checkVolumes(t, s)
		}
	}
}

// TestKilledFormat kills mke2fs after several delays. The partition must then look blank or contain
// a complete file system.
func TestKilledFormat(t *testing.T) {
	mkfstest.Overwrites(t)
	s := scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, but(data, func(p *partSpec) { p.content = ext4("DATA", 300) }))}}
	killed := 0
	for after := 40 * time.Millisecond; after < 2*time.Second; after = after * 3 / 2 {
		build(t, s)
		have := facts(t, s)
		f := Format{Label: layout.Data, Device: mkfstest.Disk + "5"}
		ctx, cancel := context.WithTimeout(t.Context(), after)
		f.run = func(_ context.Context, args ...string) ([]byte, error) { return mkfstest.Run(ctx, args...) }
		err := f.Do(t.Context())
		cancel()
		now := facts(t, s)
		content := partitionAt(now, f.Device).Content
		if err != nil {
			killed++
			if !content.blank() && content.Size != partitionAt(have, f.Device).Size {
				t.Errorf("killed after %s: holds %+v, which is neither blank nor complete", after, content)
			}
		}
		settle(t, s)
		checkVolumes(t, s)
		if err == nil {
			break
		}
	}
	if killed == 0 {
		t.Error("mke2fs was never killed, so the test has checked nothing")
	}
}

// shutdownNow is EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32), with EXT4_GOING_FLAGS_NOLOGFLUSH: the
// file system stops immediately, as after a power cut. See fs/ext4/ext4.h.
const (
	shutdownNow = 0x8004587d
	noLogFlush  = 2
)

// TestPowerCutUnderWrites stops both file systems during writes. Synced data must survive.
func TestPowerCutUnderWrites(t *testing.T) {
	mkfstest.Overwrites(t)
	s := scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}}
	build(t, s)
	settle(t, s)
	for _, dir := range []string{paths.State, paths.Data} {
		f, err := os.Create(filepath.Join(dir, "synced"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("acknowledged"); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 10000), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.IoctlSetPointerInt(int(f.Fd()), shutdownNow, noLogFlush); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	unmount(t)
	settle(t, s)
	for _, dir := range []string{paths.State, paths.Data} {
		if got, err := os.ReadFile(filepath.Join(dir, "synced")); err != nil || string(got) != "acknowledged" {
			t.Errorf("%s: synced data is gone: %q, %v", dir, got, err)
		}
	}
	checkVolumes(t, s)
}

// TestDamageIsRefused damages the superblock of DATA. The plan must reject this partition, and not
// format it as a new one.
func TestDamageIsRefused(t *testing.T) {
	mkfstest.Overwrites(t)
	s := scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}}
	build(t, s)
	overwrite(t, mkfstest.Disk+"5", 1024, 1024)
	_, err := Plan(s.config, facts(t, s))
	if err == nil || !strings.Contains(err.Error(), unknownData) {
		t.Errorf("a damaged DATA was accepted: %v", err)
	}
}

// TestResetOnRealDisk wipes both volumes, checks that their content is unreadable, and creates them
// again.
func TestResetOnRealDisk(t *testing.T) {
	mkfstest.Overwrites(t)
	s := scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}}
	build(t, s)
	settle(t, s)
	for _, op := range Reset(facts(t, s), []string{layout.Data, layout.State}, nil) {
		if err := op.Do(t.Context()); err == nil {
			t.Errorf("%s: the operation succeeds, although the partition is mounted", op)
		}
	}
	unmount(t)
	const key, at = "a key that nobody may find again", 20 << 20
	stateDevice, err := os.OpenFile(mkfstest.Disk+"4", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stateDevice.Close()
	if _, err := stateDevice.WriteAt([]byte(key), at); err != nil {
		t.Fatal(err)
	}
	if err := stateDevice.Sync(); err != nil {
		t.Fatal(err)
	}
	dataDevice, err := os.OpenFile(mkfstest.Disk+"5", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dataDevice.Close()
	if _, err := dataDevice.WriteAt(bytes.Repeat([]byte(key), erasePiece/len(key)+1), at); err != nil {
		t.Fatal(err)
	}
	if err := dataDevice.Sync(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, op := range Reset(facts(t, s), []string{layout.Data, layout.State}, func(line string) { said = append(said, line) }) {
		do(t, op)
	}
	t.Log(said)
	if len(said) != 2 || !strings.HasPrefix(said[0], "STATE ") || !strings.HasPrefix(said[1], "DATA ") {
		t.Errorf("the operations report %q", said)
	} else if kept := readAfresh(t, mkfstest.Disk+"5", at, len(key)); bytes.Equal(kept, []byte(key)) && !strings.Contains(said[1], "CAN STILL BE READ") {
		t.Errorf("DATA can still be read, but the operation reports %q", said[1])
	}
	left := make([]byte, len(key))
	if _, err := stateDevice.ReadAt(left, at); err != nil || !bytes.Equal(left, make([]byte, len(key))) {
		t.Errorf("the key on STATE was not overwritten: %q, %v", left, err)
	}
	if left := Reset(facts(t, s), []string{layout.Data, layout.State}, nil); len(left) > 0 {
		t.Errorf("after the reset, these operations remain:\n%s", printed(left, nil))
	}
	settle(t, s)
	checkVolumes(t, s)
}

// readAfresh reads a device without the page cache.
func readAfresh(t *testing.T, path string, at uint64, length int) []byte {
	t.Helper()
	p, err := openErasable(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	page := make([]byte, 4096)
	if err := p.readBack(page, at); err != nil {
		t.Fatal(err)
	}
	return page[:length]
}

// TestFaultsOnRealDisk makes the kernel find an error in DATA. The error is reported while DATA is
// mounted, and at the next boot, before the check that clears the error.
func TestFaultsOnRealDisk(t *testing.T) {
	mkfstest.Overwrites(t)
	// DATA is formatted as on first boot
	s := scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state)}}
	build(t, s)
	settle(t, s)
	of := func(all []FilesystemErrors, label string) FilesystemErrors {
		t.Helper()
		i := slices.IndexFunc(all, func(s FilesystemErrors) bool { return s.Label == label })
		if i < 0 {
			t.Fatalf("%s is missing in %+v", label, all)
		}
		return all[i]
	}
	now, err := readFilesystemErrors()
	if err != nil || len(now) != 2 || !now[0].OK() || !now[1].OK() {
		t.Fatalf("after a format: %+v, %v", now, err)
	}
	trigger := filepath.Join(sysExt4, filepath.Base(mkfstest.Disk)+"5", "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("a test"), 0); err != nil {
		t.Fatal(err)
	}
	if now, err = readFilesystemErrors(); err != nil {
		t.Fatal(err)
	}
	broken := of(now, layout.Data)
	if broken.OK() || broken.Faults.Count != 1 || !broken.ReadOnly || broken.Faults.First.Function == "" || broken.Faults.First.Time.IsZero() || !of(now, layout.State).OK() {
		t.Errorf("after an error: %+v", now)
	}
	t.Log(broken)
	unmount(t)
	before := beforeCheck(facts(t, s))
	if len(before) != 1 || before[0].Label != layout.Data || before[0].Faults.Count < 1 || before[0].Faults.First.Function != broken.Faults.First.Function {
		t.Errorf("before the check: %+v", before)
	}
	settle(t, s)
	if now, err = readFilesystemErrors(); err != nil || !of(now, layout.Data).OK() {
		t.Errorf("after the check: %+v, %v", now, err)
	}
	unmount(t)
	if left := beforeCheck(facts(t, s)); len(left) > 0 {
		t.Errorf("errors remain after the check: %+v", left)
	}
}

// TestListing checks the disk properties that the machine's state lists.
func TestListing(t *testing.T) {
	mkfstest.Overwrites(t)
	build(t, scenario{disk: diskSpec{table: "gpt", partitions: image}})
	have, err := Read(t.Context(), diskprobetest.ProbeInProcess)
	if err != nil {
		t.Fatal(err)
	}
	if len(have.Disks) < 2 {
		t.Fatalf("%d disks, want at least 2 (kernel-test plugs in two)", len(have.Disks))
	}
	unlooked, err := Read(t.Context(), nil)
	if err != nil || len(unlooked.Disks) != len(have.Disks) || unlooked.Disks[0].Table.Kind != unexamined || unlooked.Disks[0].Size != have.Disks[0].Size {
		t.Errorf("without an examination: %+v, %v", unlooked.Disks, err)
	}
	d := have.Disks[0]
	if d.Path != mkfstest.Disk || d.Size != diskSize*mib || d.SectorSize != 512 || d.Transport != "virtio" || !strings.HasPrefix(d.Bus, "/pci") || d.ReadOnly {
		t.Errorf("the disk is listed as %+v", d)
	}
}

func do(t *testing.T, op reconcile.Op) {
	t.Helper()
	if err := op.Do(t.Context()); err != nil {
		t.Fatalf("%s: %v", op, err)
	}
}

// facts reads the disk of the scenario. The disk is the boot disk, unless the scenario has only a
// data disk.
func facts(t *testing.T, s scenario) Have {
	t.Helper()
	mounts, err := mount.List()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := diskprobe.List(diskprobe.Sys)
	if err != nil {
		t.Fatal(err)
	}
	devices = slices.DeleteFunc(devices, func(d diskprobe.Device) bool { return d.Path != mkfstest.Disk })
	if len(devices) != 1 {
		t.Fatalf("%s is missing: run the test with vm's kernel-test", mkfstest.Disk)
	}
	boot := ""
	if !s.disk.data {
		boot = parttable.PartitionPath(mkfstest.Disk, 2)
	}
	disks, err := readAll(t.Context(), devices, boot, diskprobetest.ProbeInProcess)
	if err != nil || len(disks) != 1 || disks[0].Boot == s.disk.data {
		t.Fatalf("readAll returns %+v, %v", disks, err)
	}
	return Have{Disks: disks, Mounts: mounts}
}

// settle plans operations and runs them.
func settle(t *testing.T, s scenario) {
	t.Helper()
	have := facts(t, s)
	want, err := Plan(s.config, have)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range Diff(have, want, mkfstest.Run) {
		do(t, op)
	}
}

func unmount(t *testing.T) {
	t.Helper()
	for _, target := range []string{paths.State, paths.Data} {
		if err := mount.Unmount(target); err != nil {
			t.Fatal(err)
		}
	}
}

// build creates the disk of the scenario.
func build(t *testing.T, s scenario) {
	t.Helper()
	unmount(t)
	device, err := block.NewFromPath(mkfstest.Disk, block.OpenForWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if size, err := device.GetSize(); err != nil || size != diskSize*mib {
		t.Fatalf("%s has %d bytes (%v), want %d MiB", mkfstest.Disk, size, err, diskSize)
	}
	if _, err := device.WipeRange(0, diskSize*mib); err != nil {
		t.Fatal(err)
	}
	sized, err := gpt.DeviceFromBlockDevice(device)
	if err != nil {
		t.Fatal(err)
	}
	writeTable(t, sized, s.disk)
	if s.disk.table != "gpt" || s.disk.tableSize != 0 {
		if err := unix.IoctlSetInt(int(device.File().Fd()), unix.BLKRRPART, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range s.disk.partitions {
		path := parttable.PartitionPath(mkfstest.Disk, i+1)
		switch {
		case p.content.Kind == "ext4":
			blocks := fmt.Sprint(p.content.Size / 4096)
			if _, err := mkfstest.Run(t.Context(), paths.Mke2fs, "-q", "-F", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
				"-L", p.content.Label, path, blocks); err != nil {
				t.Fatal(err)
			}
		case p.content.Kind == unknownData:
			overwrite(t, path, 0, 4096)
		case p.behind:
			overwrite(t, path, 8192, 4096)
		}
	}
	if s.disk.torn {
		if _, err := device.File().WriteAt([]byte("torn"), 2*512+100); err != nil {
			t.Fatal(err)
		}
	}
	if s.mount {
		for _, m := range mountAll(facts(t, s).Disks[0]) {
			if err := m.Do(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// writeTable writes the partition table for a disk of tableSize, which can differ from the size of
// the disk.
func writeTable(t *testing.T, device gpt.Device, d diskSpec) {
	t.Helper()
	switch d.table {
	case "":
		// The kernel retains partitions of the previous scenario; an empty table removes them.
		table, err := gpt.New(device)
		if err == nil {
			err = table.Write()
		}
		if err != nil {
			t.Fatal(err)
		}
		zero(t, device)
		return
	case "gpt":
	default:
		mbr := make([]byte, 512)
		copy(mbr[446:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0x10, 0})
		mbr[510], mbr[511] = 0x55, 0xaa
		if _, err := device.WriteAt(mbr, 0); err != nil {
			t.Fatal(err)
		}
		return
	}
	target := device
	if d.tableSize > 0 {
		file, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := file.Truncate(int64(d.tableSize * mib)); err != nil {
			t.Fatal(err)
		}
		if target, err = gpt.DeviceFromFile(file); err != nil {
			t.Fatal(err)
		}
	}
	guid := func(name string) uuid.UUID {
		if d.shared {
			return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name))
		}
		return uuid.New()
	}
	table, err := gpt.New(target, gpt.WithDiskGUID(guid("disk")))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.partitions {
		if _, _, err := table.AllocatePartition(p.size*mib, p.label, p.kind, gpt.WithUniqueGUID(guid(p.label))); err != nil {
			t.Fatalf("%s: %v", p.label, err)
		}
	}
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	if d.tableSize > 0 {
		begin := make([]byte, mib)
		if _, err := target.ReadAt(begin, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := device.WriteAt(begin, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func zero(t *testing.T, device gpt.Device) {
	t.Helper()
	for _, at := range []int64{0, diskSize*mib - mib} {
		if _, err := device.WriteAt(make([]byte, mib), at); err != nil {
			t.Fatal(err)
		}
	}
}

func overwrite(t *testing.T, path string, at int64, length int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	noise := make([]byte, length)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(noise, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// checkVolumes writes to both volumes, boots again, and reads the data back. The file systems must
// be clean and fill their partitions.
func checkVolumes(t *testing.T, s scenario) {
	t.Helper()
	text := []byte("kept\n")
	for _, dir := range []string{paths.State, paths.Data} {
		if err := os.WriteFile(filepath.Join(dir, "file"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lib := filepath.Join(paths.Data, "lib") // a private mode, as from another process
	if err := errors.Join(os.MkdirAll(lib, 0o700), os.Chmod(lib, 0o700)); err != nil {
		t.Fatal(err)
	}
	unmount(t)
	have := facts(t, s)
	if !have.Disks[0].BackupAtEnd {
		t.Error("the backup partition table is not at the end of the disk")
	}
	want, err := Plan(s.config, have)
	if err != nil {
		t.Fatal(err)
	}
	ops := Diff(have, want, mkfstest.Run)
	if len(ops) != 4 {
		t.Errorf("a later boot has other operations than two checks and two mounts:\n%s", printed(ops, nil))
	}
	for _, v := range want.Volumes {
		if _, err := mkfstest.Run(t.Context(), paths.E2fsck, "-f", "-n", v.Format.Device); err != nil {
			t.Errorf("%s: e2fsck finds errors: %v", v.Format.Label, err)
		}
		p := partitionAt(have, v.Format.Device)
		if p.Content.Size+growStep <= p.Size {
			t.Errorf("%s: the file system has %s of %s", v.Format.Label, layout.FormatSize(p.Content.Size), layout.FormatSize(p.Size))
		}
	}
	for _, op := range ops {
		do(t, op)
	}
	for _, v := range want.Volumes {
		if got, err := os.ReadFile(filepath.Join(v.Mount.Target, "file")); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: the file is missing or changed: %q, %v", v.Format.Label, got, err)
		}
		m, _, err := mount.At(v.Mount.Target)
		if err != nil || m.Flags != v.Mount.Flags || m.Type != "ext4" {
			t.Errorf("%s: mounted as %s (%v), want %s", v.Format.Label, m, err, v.Mount)
		}
		for name, want := range v.Links {
			if target, err := os.Readlink(filepath.Join(v.Mount.Target, name)); err != nil || target != want {
				t.Errorf("%s: the target of link %s is %q, %v", v.Format.Label, name, target, err)
			}
		}
		for _, name := range v.Dirs {
			if info, err := os.Stat(filepath.Join(v.Mount.Target, name)); err != nil || info.Mode() != fs.ModeDir|0o755 {
				t.Errorf("%s: directory %s: %v, %v; every user must be able to traverse it", v.Format.Label, name, info, err)
			}
		}
	}
	if left := Diff(facts(t, s), want, mkfstest.Run); len(left) > 0 {
		t.Errorf("after a later boot, these operations remain:\n%s", printed(left, nil))
	}
}
