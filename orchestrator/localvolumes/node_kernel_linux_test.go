package localvolumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/localvolumes/projectquota"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// dial returns a connection to a socket of the driver, as the kubelet opens it. The end of the test
// closes it.
func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// fill appends up to 64 MiB to a file without CAP_SYS_RESOURCE, like a pod. It returns how many MiB
// it has written before the first error, and this error.
func fill(path string) (fitted int, err error) {
	err = projectquota.Limited(func() error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		for err == nil && fitted < 64 {
			if _, err = f.Write(make([]byte, mib)); err == nil {
				fitted++
			}
		}
		return errors.Join(err, f.Close())
	})
	return fitted, err
}

// TestNode calls the driver of the node as the kubelet does, on a real disk. The driver registers
// at the kubelet. It creates and mounts a volume, which accepts no more bytes than its size, grows
// while it is mounted, and exists after a power cut. After its removal, no data are left.
func TestNode(t *testing.T) {
	mkfstest.Overwrites(t)
	// The deadline is long, because the test runs in an emulator and in parallel with other tests.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	data := mount.Mount{Source: mkfstest.Disk, Target: filepath.Join(t.TempDir(), "data"), Type: "ext4", Flags: mount.NoSuid | mount.NoDev | mount.NoAtime}
	if err := mkfs.Ext4(ctx, mkfstest.Run, data.Source, mkfs.Ext4Options{Label: "DATA", ReservedPercent: 1, Quotas: mkfs.ProjectQuotas}); err != nil {
		t.Fatal(err)
	}
	kubelet := t.TempDir()
	target := filepath.Join(kubelet, "pods/1/volumes/mount")
	var n *node
	var service csi.NodeClient
	start := func() (stop func()) {
		if err := data.Do(); err != nil {
			t.Fatal(err)
		}
		var err error
		if n, err = newNode(nodespec.Spec{Node: nodespec.Node{Name: "a"}, Version: "1"}, filepath.Join(data.Target, "local-volumes"), kernelQuotas{}); err != nil {
			t.Fatal(err)
		}
		end, _, err := nodes{n}.serve(kubelet, func(bool, string) {})
		if err != nil {
			t.Fatal(err)
		}
		info, err := registration.NewRegistrationClient(dial(t, filepath.Join(kubelet, "plugins_registry", Driver+"-reg.sock"))).GetInfo(ctx, &registration.InfoRequest{})
		if err != nil || info.Name != Driver || info.Type != registration.CSIPlugin {
			t.Fatalf("%+v, %v", info, err)
		}
		service = csi.NewNodeClient(dial(t, info.Endpoint))
		return end
	}
	publish := func(name string, size int64) {
		t.Helper()
		if _, err := service.NodePublishVolume(ctx, request(name, n.filesystem, strconv.FormatInt(size, 10), target)); err != nil {
			t.Fatal(err)
		}
	}
	unpublish := func() {
		t.Helper()
		if _, err := service.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: named(1), TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}

	stop := start()
	before, err := n.perform(ctx, nil, nil)
	if err != nil || before.Size < gib || before.Filesystem == "" {
		t.Fatalf("%+v, %v", before, err)
	}
	publish(named(1), 16*mib)
	publish(named(1), 16*mib)
	if fitted, err := fill(filepath.Join(target, "file")); fitted != 15 || !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d of 16 MiB could be written, want 15, because the directory needs some space; then: %v", fitted, err)
	} else {
		t.Logf("a write beyond the size: %v", err)
	}
	stats, err := service.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: named(1), VolumePath: target})
	if err != nil || stats.Usage[0].Total != 16*mib || stats.Usage[0].Used < 15*mib {
		t.Errorf("%+v, %v", stats, err)
	}
	if _, err := service.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: named(1), VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: 24 * mib}}); err != nil {
		t.Fatal(err)
	}
	if fitted, err := fill(filepath.Join(target, "file")); fitted != 8 && fitted != 7 || err == nil {
		t.Errorf("%d of 8 further MiB could be written, then: %v", fitted, err)
	}
	if _, err := n.perform(ctx, []string{named(1)}, nil); err == nil {
		t.Error("a mounted volume was destroyed")
	}
	// The pod assigns the directory to another project, which can be that of another tenant. At
	// its next start, the driver assigns the directory to its own project again.
	dir := filepath.Join(data.Target, "local-volumes", volumes, named(1))
	own, err := projectquota.Of(dir)
	if err = errors.Join(err, projectquota.Assign(dir, own+1)); err != nil {
		t.Fatal(err)
	}
	unix.Sync()

	stop()
	cutPower(ctx, t, data, target)
	stop = start()
	defer func() { stop() }()
	after, err := n.perform(ctx, nil, nil)
	if err != nil || after.Filesystem != before.Filesystem || after.Size != before.Size {
		t.Errorf("after the power cut: %+v, %v, before: %+v", after, err, before)
	}
	if now, err := projectquota.Of(dir); now != own || err != nil {
		t.Errorf("the project is %d, want %d: %v", now, own, err)
	}
	if after.Volumes[named(1)] != 24*mib {
		t.Fatalf("the volume is missing, or has not grown: %+v", after)
	}
	publish(named(1), 16*mib)
	unpublish()
	unpublish()
	gone, err := afterRemoval(t, n, named(1))
	if err != nil || len(gone.Volumes) > 0 || len(gone.Removed) != 1 {
		t.Errorf("%+v, %v", gone, err)
	}
	stop()
	if err := mount.Unmount(data.Target); err != nil {
		t.Fatal(err)
	}
	if _, err := mkfstest.Run(ctx, "/usr/sbin/e2fsck", "-f", "-n", data.Source); err != nil {
		t.Errorf("the file system has errors: %v", err)
	}
}

// cutPower simulates a power cut: it stops all writes to the disk, unmounts the file system and
// repairs it as the next boot does.
func cutPower(ctx context.Context, t *testing.T, data mount.Mount, mounted ...string) {
	t.Helper()
	root, err := os.Open(data.Target)
	if err != nil {
		t.Fatal(err)
	}
	// EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h)
	err = errors.Join(unix.IoctlSetPointerInt(int(root.Fd()), 0x8004587d, 2), root.Close())
	for _, target := range append(mounted, data.Target) {
		err = errors.Join(err, mount.Unmount(target))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mkfstest.Run(ctx, "/usr/sbin/e2fsck", "-p", data.Source); err != nil {
		t.Logf("the first check: %v", err)
	}
}

// TestSnapshotOnDisk takes a snapshot of a full volume on a real disk, and makes a volume from the
// snapshot after a power cut. It checks that an incomplete copy is removed, that the new volume has
// a quota, and that a copy cannot exceed its quota.
func TestSnapshotOnDisk(t *testing.T) {
	mkfstest.Overwrites(t)
	// The deadline is long, because the test runs in an emulator and in parallel with other tests.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	data := mount.Mount{Source: mkfstest.Disk, Target: filepath.Join(t.TempDir(), "data"), Type: "ext4", Flags: mount.NoSuid | mount.NoDev | mount.NoAtime}
	if err := mkfs.Ext4(ctx, mkfstest.Run, data.Source, mkfs.Ext4Options{Label: "DATA", ReservedPercent: 1, Quotas: mkfs.ProjectQuotas}); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "pods/0a1b2c3d-0000-4000-8000-000000000001/mount")
	root := filepath.Join(data.Target, "local-volumes")
	file := func(name string) string { return filepath.Join(target, name) }
	var n *node
	start := func() {
		err := data.Do()
		if err == nil {
			n, err = newNode(nodespec.Spec{Node: nodespec.Node{Name: "a"}}, root, kernelQuotas{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	show := func(name, from string) {
		t.Helper()
		if err := n.store.show(name, 16*mib, from, func(dir string) error { return mount.Bind(dir, target, mount.NoSuid) }); err != nil {
			t.Fatal(err)
		}
	}
	hide := func() {
		t.Helper()
		if err := mount.Unmount(target); err != nil {
			t.Fatal(err)
		}
	}

	start()
	show(named(1), "")
	err := errors.Join(
		os.MkdirAll(file("a/b"), 0o755), os.WriteFile(file("a/b/text"), []byte("before"), 0o640), os.Lchown(file("a/b/text"), 1000, 2000), os.Link(file("a/b/text"), file("same")),
		unix.Setxattr(file("a/b/text"), "user.note", []byte("kept"), 0), unix.Mknod(file("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))), unix.Mkfifo(file("pipe"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	if fitted, err := fill(file("full")); fitted < 14 || err == nil {
		t.Fatalf("%d MiB could be written, then: %v", fitted, err)
	}
	take := Copy{Name: snapped(1), Of: named(1), Size: 16 * mib}
	if r, err := n.perform(ctx, nil, []Copy{take}); err != nil || r.Waits[snapped(1)] == "" || len(r.Volumes) != 1 {
		t.Errorf("while the volume is mounted: %+v, %v", r, err)
	}
	hide()
	began := time.Now().Unix()
	r := afterCopies(t, n, take)
	if r.Created[snapped(1)] < began-1 || r.Volumes[snapped(1)] < 14*mib || r.Volumes[snapped(1)] > 16*mib+slack(16*mib) {
		t.Fatalf("%+v", r)
	}
	show(named(1), "")
	if err := os.WriteFile(file("a/b/text"), []byte("after"), 0o640); err != nil {
		t.Fatal(err)
	}

	// A power cut interrupts the next copy.
	hide()
	if err := unix.Mkdir(filepath.Join(root, making, snapped(2)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, making, snapped(2), "half"), make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := persistAll(root); err != nil {
		t.Fatal(err)
	}
	cutPower(ctx, t, data)
	start()
	restore := Copy{Name: named(2), Of: snapped(1), Size: 16 * mib}
	r = afterCopies(t, n, restore)
	if _, made := r.Created[named(2)]; !made || r.Volumes[named(2)] != 16*mib || r.Volumes[snapped(1)] == 0 || len(r.Volumes) != 3 {
		t.Fatalf("%+v", r)
	}
	show(named(2), snapped(1))
	var text, device unix.Stat_t
	was, err := os.ReadFile(file("same"))
	if err = errors.Join(err, unix.Lstat(file("a/b/text"), &text), unix.Lstat(file("device"), &device)); err != nil || string(was) != "before" ||
		text.Uid != 1000 || text.Gid != 2000 || text.Mode != unix.S_IFREG|0o640 || text.Nlink != 2 || device.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("%q, %+v, %+v, %v", was, text, device, err)
	}
	note := make([]byte, 16)
	if size, err := unix.Getxattr(file("a/b/text"), "user.note", note); err != nil || string(note[:size]) != "kept" {
		t.Errorf("%q, %v", note, err)
	}
	if fitted, err := fill(file("more")); fitted > 1 || !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d MiB could be written to a full volume, then: %v", fitted, err)
	}

	// The pod assigns a directory to project 0 and writes more than the size of the volume into it.
	if err := os.Mkdir(file("out"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := projectquota.Assign(file("out"), 0); err != nil {
		t.Fatal(err)
	}
	if fitted, err := fill(file("out/file")); fitted < 64 || err != nil {
		t.Fatalf("%d MiB, %v", fitted, err)
	}
	// The pod creates deep directories and assigns them to project 0.
	if err := os.MkdirAll(file(strings.Repeat("d/", maxOpenDepth)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file("out"), file(strings.Repeat("d/", maxOpenDepth)+"out")); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a directory was moved between projects: %v", err)
	}
	deep := file(strings.Repeat("d/", maxOpenDepth) + "e")
	if err := os.MkdirAll(filepath.Join(deep, "f/g"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := projectquota.Assign(deep, 0); err != nil {
		t.Fatal(err)
	}
	// The pod assigns the directory of the volume itself to project 0.
	if err := projectquota.Assign(file("."), 0); err != nil {
		t.Fatal(err)
	}
	hide()
	if r := afterCopies(t, n, Copy{Name: snapped(3), Of: named(2), Size: 16 * mib}); !strings.Contains(r.Waits[snapped(3)], named(2)+" contains more than") || len(r.Volumes) != 3 {
		t.Errorf("%+v", r)
	}
	if gone, err := afterRemoval(t, n, named(1), named(2), snapped(1)); err != nil || len(gone.Volumes) > 0 {
		t.Errorf("%+v, %v", gone, err)
	}
	if err := mount.Unmount(data.Target); err != nil {
		t.Fatal(err)
	}
	if _, err := mkfstest.Run(ctx, "/usr/sbin/e2fsck", "-f", "-n", data.Source); err != nil {
		t.Errorf("the file system has errors: %v", err)
	}
}
