package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// resizeFS is EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h: _IOW('f', 16, __u64), the new number of blocks.
const resizeFS = 0x40086610

// Do writes the table if it still has GUIDs of the image.
func (i Identify) Do(context.Context) error { return parttable.Identify(i.Disk) }

// Do creates the file system.
func (f Format) Do(ctx context.Context) error {
	return mkfs.Ext4(ctx, f.run, f.Device, mkfs.Ext4Options{Label: f.Label, ReservedPercent: f.ReservedPercent, Quotas: f.Quotas})
}

// Do runs e2fsck.
func (c Check) Do(ctx context.Context) error {
	if err := mkfs.RepairExt4(ctx, c.run, c.Device); err != nil {
		return fmt.Errorf("%s: %s cannot be repaired automatically; it was not mounted. Reset the machine, or repair it elsewhere: %w", c.Device, c.Label, err)
	}
	return nil
}

// Do mounts the volume, unless it is mounted, and creates the directories. It also sets the mode of
// the directories: the first process that needs a subdirectory could have created the parent with a
// private mode.
func (m Mount) Do(context.Context) error {
	there, mounted, err := mount.At(m.Target)
	if err != nil {
		return err
	}
	if !mounted || there.Source != m.Source {
		if err := m.Mount.Do(); err != nil {
			return err
		}
	}
	for _, name := range m.Dirs {
		dir := filepath.Join(m.Target, name)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			return fmt.Errorf("%s: cannot create a directory: %w", m.Label, err)
		}
	}
	for name, target := range m.Links {
		if err := link(filepath.Join(m.Target, name), target); err != nil {
			return fmt.Errorf("%s: cannot create a symbolic link: %w", m.Label, err)
		}
	}
	return nil
}

// link creates a symbolic link. If another file has the name, for example a directory of a pod of
// an earlier version, link first renames this file to the name with the suffix ".old". It replaces
// an earlier ".old".
func link(name, target string) error {
	if now, err := os.Readlink(name); err == nil && now == target {
		return nil
	}
	if _, err := os.Lstat(name); err == nil {
		old := name + ".old"
		if err := errors.Join(os.RemoveAll(old), os.Rename(name, old)); err != nil {
			return err
		}
	}
	return os.Symlink(target, name)
}

// Do requests the growth from the kernel; see ext4_resize_fs. The kernel writes each step through
// the journal.
func (g GrowFilesystem) Do(context.Context) error {
	root, err := os.Open(g.Target)
	if err != nil {
		return fmt.Errorf("%s: cannot grow %s: %w", g.Target, g.Label, err)
	}
	defer root.Close()
	blocks := g.Size / mkfs.Ext4BlockSize
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), resizeFS, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("%s: cannot grow %s to %s: %w", g.Target, g.Label, layout.FormatSize(g.Size), errno)
	}
	return nil
}

// Do removes the signatures.
func (w Wipe) Do(context.Context) error {
	device, err := parttable.WipePartition(w.Device)
	if err == nil {
		err = device.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: cannot wipe %s: %w", w.Device, w.Label, err)
	}
	return nil
}
