package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/go-blockdevice/v2/block"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/volumes/swap"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/diskprobe/diskprobetest"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
	"github.com/orlop-os/orlop/pkg/paths"
)

// realDisks examines the test disk in this process. machined does the same in a sandboxed process.
func realDisks(ctx context.Context, _ bool) ([]Disk, error) {
	devices, err := diskprobe.List(diskprobe.Sys)
	if err != nil {
		return nil, err
	}
	var out []Disk
	for _, r := range diskprobetest.ProbeInProcess(ctx, devices) {
		if r.Device.Path != mkfstest.Disk {
			continue
		}
		if r.Err != nil {
			return nil, r.Err
		}
		const alignment = mib
		d := Disk{Disk: diskmatch.Disk{Path: r.Device.Path, Size: int64(r.Answer.Size)}, Table: r.Answer.Table, First: alignment, End: r.Answer.Size - 33*r.Device.SectorSize, Alignment: alignment}
		for _, e := range r.Answer.Entries {
			content := r.Answer.Content(e.Number)
			d.Partitions = append(d.Partitions, Partition{Path: parttable.PartitionPath(d.Path, e.Number), Label: e.Label, UUID: e.UUID, Start: e.Start, Size: e.Size,
				Content: Content{Kind: content.Kind, UUID: content.UUID, Size: content.Size}})
		}
		out = append(out, d)
	}
	return out, nil
}

// realController returns a Controller with the test disk as its only disk.
func realController(t *testing.T, records string) *Controller {
	t.Helper()
	return New(Deps{
		Disks: realDisks, Changes: cell.New(struct{}{}).View(), Run: mkfstest.Run, Busy: func() bool { return false },
		Records: records, StorageProblem: func() string { return "" }, Event: func(_, message string) { t.Log(message) },
	})
}

// healthy fails the test if a volume has a problem, and returns the state.
func healthy(t *testing.T, c *Controller) State {
	t.Helper()
	s, _ := c.state.Get()
	if why := s.HealthProblem(); why != "" {
		t.Fatal(why)
	}
	return s
}

// unmountAll unmounts all volumes, as a reboot does.
func unmountAll(t *testing.T) {
	t.Helper()
	all, err := mount.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(all) {
		if strings.HasPrefix(m.Target, paths.VolumeMounts) || m.Target == paths.PodLogs || m.Target == paths.AuditLog {
			if err := mount.Unmount(m.Target); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// blank erases the test disk.
func blank(t *testing.T) {
	t.Helper()
	mkfstest.Overwrites(t)
	device, err := block.NewFromPath(mkfstest.Disk, block.OpenForWrite())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.WipeRange(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(device.Close(), wipeDisk(mkfstest.Disk)); err != nil {
		t.Fatal(err)
	}
}

// TestSwapOnRealDisk uses swap on a blank disk. The use must fail while the kernel can swap memory
// of the system's own control group. Then the swap grows while it is in use, is switched off when
// its document is removed, is used again, and is wiped.
func TestSwapOnRealDisk(t *testing.T) {
	blank(t)
	tree := cgroup.Tree(cgroup.Mount)
	if controllers, err := tree.Read("/", "cgroup.controllers"); err != nil || controllers == "" {
		m := mount.Mount{Source: "cgroup2", Target: cgroup.Mount, Type: "cgroup2", Data: cgroup.Options}
		if err := m.Do(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tree.Delegate("/", []string{"memory"}), tree.Make(cgroup.System, cgroup.Limits{})); err != nil {
		t.Fatal(err)
	}
	want := Config{[]Volume{{Name: "s", Use: config.UseSwap, Size: 256 * mib, Disk: config.DiskSelector{Path: mkfstest.Disk}, Swap: Swap{Discard: true}}}}
	c := realController(t, filepath.Join(t.TempDir(), "volumes.json"))
	limit := func(value string) {
		t.Helper()
		if err := tree.Set(cgroup.System, map[string]string{cgroup.SwapMax: value}); err != nil {
			t.Fatal(err)
		}
	}
	const page = 4096 // bytes of the header
	areas := func(size uint64) {
		t.Helper()
		all, err := swap.Areas()
		if err != nil || len(all) > 1 || (len(all) == 1) != (size > 0) || c.Swap() != size {
			t.Fatalf("areas %+v, %v, state %d; want %d bytes", all, err, c.Swap(), size)
		}
	}
	limit("max")
	c.converge(t.Context(), want)
	if s, _ := c.state.Get(); !strings.Contains(s.HealthProblem(), "the system's own memory could be swapped") {
		t.Errorf("without the limit: %q", s.HealthProblem())
	}
	areas(0)
	limit("0")
	c.converge(t.Context(), want)
	healthy(t, c)
	areas(256*mib - page)
	if _, err := c.WipeVolume(t.Context(), "s"); err == nil {
		t.Error("swap in use was wiped")
	}
	want.Volumes[0].Size = 512 * mib
	c.converge(t.Context(), want)
	healthy(t, c)
	areas(512*mib - page)
	c.converge(t.Context(), Config{})
	healthy(t, c)
	areas(0)
	c.converge(t.Context(), want)
	healthy(t, c)
	areas(512*mib - page)
	c.converge(t.Context(), Config{})
	if said, err := c.WipeVolume(t.Context(), "s"); err != nil {
		t.Error(err)
	} else {
		t.Log(said)
	}
	disks, err := realDisks(t.Context(), true)
	if err != nil || len(disks) != 1 || disks[0].Table != "" {
		t.Errorf("after the wipe: %+v, %v", disks, err)
	}
}

// TestVolumesOnRealDisk creates volumes of several uses on a blank disk. It stops after 1
// operation, then after 2, 3 and so on, and continues each time, as after a power cut. Then it
// writes files, grows a volume, and finds all files after a reboot. At the end it wipes all
// volumes, and the disk is blank again.
func TestVolumesOnRealDisk(t *testing.T) {
	blank(t)
	records := filepath.Join(t.TempDir(), "volumes.json")
	of := func(name string, use config.VolumeUse, size uint64) Volume {
		return Volume{Name: name, Use: use, Size: size, Disk: config.DiskSelector{Path: mkfstest.Disk}, Flags: mount.NoSuid | mount.NoDev | mount.NoAtime}
	}
	// images and logs have files on DATA that must move to the volumes
	for _, file := range []string{paths.ContainerdData + "/image", paths.PodLogs + "/old"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("kept"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want := Config{[]Volume{of("i", config.UseImages, 256*mib), of("m", config.UseMount, 256*mib), of("e", config.UseEtcd, 256*mib), of("l", config.UseLogs, 256*mib), of("s", config.UseStorageClass, 256*mib)}}
	for stop := 1; ; stop++ { // the power is cut after this number of operations
		c := realController(t, records)
		have, err := c.read(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		ops := Diff(have, Plan(want, have, newID), c.tools())
		if len(ops) == 0 {
			break
		}
		if stop > 60 {
			t.Fatalf("operations remain after many repetitions: %v", ops)
		}
		for _, op := range ops[:min(stop, len(ops))] {
			if err := op.Do(t.Context()); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
		}
		if stop < len(ops) {
			unmountAll(t)
		}
	}
	for _, file := range []string{paths.HostMnt + "/m/file", paths.EtcdData + "/file", paths.EtcdSnapshots + "/file", paths.PodLogs + "/file", ClassDir("s") + "/file"} {
		if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
			t.Error(err)
		}
	}
	want.Volumes[4].Size = 0 // 0 means the rest of the disk: the volume grows while it is mounted
	grown := realController(t, records)
	grown.converge(t.Context(), want)
	healthy(t, grown)
	var fs unix.Statfs_t
	if err := unix.Statfs(ClassDir("s"), &fs); err != nil || fs.Blocks*uint64(fs.Bsize) < 600*mib {
		t.Errorf("after the growth: %d blocks, %v", fs.Blocks, err)
	}
	// etcd's restore renames files between its two directories
	if err := os.Rename(paths.EtcdSnapshots+"/file", paths.EtcdData+"/renamed"); err != nil {
		t.Error(err)
	}
	unmountAll(t)
	if _, err := os.ReadFile(paths.EtcdData + "/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of etcd is readable while its volume is not mounted: %v", err)
	}
	if err := os.MkdirAll(paths.EtcdData+"/member", 0o700); err == nil {
		t.Error("etcd could begin on DATA while its volume is not mounted")
	}
	want.Volumes[4].Size = 512 * mib // this is reported as a problem: volumes do not shrink
	c := realController(t, records)
	c.converge(t.Context(), want)
	if s, _ := c.state.Get(); !strings.Contains(s.HealthProblem(), "do not shrink") {
		t.Errorf("a smaller size: %q", s.HealthProblem())
	}
	want.Volumes[4].Size = 0
	c.converge(t.Context(), want)
	healthy(t, c)
	for _, file := range []string{paths.HostMnt + "/m/file", paths.EtcdData + "/file", paths.EtcdData + "/renamed", paths.PodLogs + "/file", paths.PodLogs + "/old",
		paths.ContainerdData + "/image", ClassDir("s") + "/file"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != "kept" {
			t.Errorf("%s after a boot: %q, %v", file, got, err)
		}
	}
	wipes(t, c, want)
}

// wipes removes documents, wipes the volumes one after the other, and checks that the disk is blank
// at the end.
func wipes(t *testing.T, c *Controller, want Config) {
	t.Helper()
	if _, err := c.WipeVolume(t.Context(), "m"); err == nil {
		t.Error("a mounted volume was wiped")
	}
	// Only the documents of the parts of DATA remain in the configuration.
	c.converge(t.Context(), Config{[]Volume{want.Volumes[0], want.Volumes[2], want.Volumes[3]}})
	healthy(t, c)
	if _, err := os.Lstat(paths.HostMnt + "/m"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link of the removed volume still exists: %v", err)
	}
	if _, err := c.WipeDisk(t.Context(), mkfstest.Disk); err == nil {
		t.Error("a disk with volumes was wiped")
	}
	for _, name := range []string{"m", "s"} {
		if said, err := c.WipeVolume(t.Context(), name); err != nil {
			t.Error(err)
		} else {
			t.Log(said)
		}
	}
	unmountAll(t)
	for _, name := range []string{"e", "l", "i"} {
		if said, err := c.WipeVolume(t.Context(), name); err != nil {
			t.Error(err)
		} else {
			t.Log(said)
		}
	}
	disks, err := realDisks(t.Context(), true)
	if err != nil || len(disks) != 1 || disks[0].Table != "" {
		t.Errorf("after all wipes: %+v, %v", disks, err)
	}
	if _, err := c.WipeDisk(t.Context(), mkfstest.Disk); err != nil {
		t.Errorf("a blank disk: %v", err)
	}
}
