package localvolumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/orlop-os/orlop/pkg/mkfs"
	"github.com/orlop-os/orlop/pkg/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// dial connects as the kubelet does.
func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// fill writes as a pod does, without CAP_SYS_RESOURCE, and returns how many MiB fitted.
func fill(path string) (fitted int, err error) {
	err = mkfstest.Limited(func() error {
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

// TestNode speaks to the node's half as the kubelet does, on a real disk: it registers, a volume is made and shown, takes what it is
// large and no more, grows while it is used, is there after the power was cut, and leaves nothing.
func TestNode(t *testing.T) {
	mkfstest.Overwrites(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // under emulation, beside others
	defer cancel()
	data := mount.Mount{Source: mkfstest.Disk, Target: filepath.Join(t.TempDir(), "data"), Type: "ext4", Flags: mount.NoSuid | mount.NoDev | mount.NoAtime}
	if err := mkfs.Ext4(ctx, mkfstest.Run, data.Source, "DATA", 1, mkfs.ProjectQuotas); err != nil {
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
		if n, err = newNode(nodespec.Spec{NodeName: "a", Version: "1"}, filepath.Join(data.Target, "local-volumes"), kernelQuotas{}); err != nil {
			t.Fatal(err)
		}
		end, _, err := n.serve(kubelet, func(bool, string) {})
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
	before, err := n.obey(nil)
	if err != nil || before.Size < gib || before.Filesystem == "" {
		t.Fatalf("%+v, %v", before, err)
	}
	publish(named(1), 16*mib)
	publish(named(1), 16*mib)
	if fitted, err := fill(filepath.Join(target, "file")); fitted != 15 || !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d of 16 MiB fitted, with the folder itself, then: %v", fitted, err)
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
		t.Errorf("%d of 8 MiB more fitted, then: %v", fitted, err)
	}
	if _, err := n.obey([]string{named(1)}); err == nil {
		t.Error("a volume that is mounted was destroyed")
	}

	// The power goes: nothing more reaches the disk.
	stop()
	root, err := os.Open(data.Target)
	if err != nil {
		t.Fatal(err)
	}
	// EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h)
	if err := unix.IoctlSetPointerInt(int(root.Fd()), 0x8004587d, 2); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(root.Close(), mount.Unmount(target), mount.Unmount(data.Target)); err != nil {
		t.Fatal(err)
	}
	if _, err := mkfstest.Run(ctx, "/usr/sbin/e2fsck", "-p", data.Source); err != nil {
		t.Logf("the first check: %v", err)
	}
	stop = start()
	defer func() { stop() }()
	after, err := n.obey(nil)
	if err != nil || after.Filesystem != before.Filesystem || after.Size != before.Size {
		t.Errorf("after the power was cut: %+v, %v, before: %+v", after, err, before)
	}
	if after.Volumes[named(1)] != 24*mib {
		t.Fatalf("the volume is gone, or has not grown: %+v", after)
	}
	publish(named(1), 16*mib)
	unpublish()
	unpublish()
	gone, err := n.obey([]string{named(1)})
	if err != nil || len(gone.Volumes) > 0 || len(gone.Gone) != 1 {
		t.Errorf("%+v, %v", gone, err)
	}
	stop()
	if err := mount.Unmount(data.Target); err != nil {
		t.Fatal(err)
	}
	if _, err := mkfstest.Run(ctx, "/usr/sbin/e2fsck", "-f", "-n", data.Source); err != nil {
		t.Errorf("not sound: %v", err)
	}
}
