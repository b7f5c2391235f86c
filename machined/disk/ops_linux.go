package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"github.com/siderolabs/go-blockdevice/v2/block"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/paths"
)

const (
	// wipeSize is how much is zeroed at the beginning and at the end of a place, in bytes: more than any signature
	// that is known to us lies away from either (btrfs 64 KiB, ZFS 512 KiB).
	wipeSize = 1 << 20
	// resizeFS is EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h: _IOW('f', 16, __u64), the new number of blocks.
	resizeFS = 0x40086610
	// blockSize of our file systems, in bytes.
	blockSize = 4096
)

// Do makes the file system. The old superblock goes first and is on the disk before mke2fs begins, so that a cut
// leaves a blank partition.
//
// Everything is said explicitly, so that no mke2fs.conf is needed. Inode tables and the journal are not zeroed now:
// the kernel does that in the background after the first mount, and the checksums of the groups say what is done. The
// disk is not discarded: on large disks that takes longer than all the rest.
func (f Format) Do(ctx context.Context) error {
	device, err := wipeDevice(f.Device)
	if err != nil {
		return fmt.Errorf("%s: cannot format %s: %w", f.Device, f.Label, err)
	}
	if err := device.Close(); err != nil {
		return fmt.Errorf("%s: cannot format %s: %w", f.Device, f.Label, err)
	}
	_, err = f.run(ctx, paths.Mke2fs, "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(blockSize), "-I", "256", "-i", "16384",
		"-O", "has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize,resize_inode,dir_index,filetype,sparse_super,large_file,ext_attr",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-e", "remount-ro",
		"-m", strconv.Itoa(f.ReservedPercent), "-L", f.Label, f.Device)
	if err != nil {
		return fmt.Errorf("%s: cannot format %s: %w", f.Device, f.Label, err)
	}
	return nil
}

// Do runs e2fsck. Its status 1 says that it has repaired something, which any runner reports as an error. So it runs a
// second time then: what it repaired is clean now.
func (c Check) Do(ctx context.Context) error {
	if _, err := c.run(ctx, paths.E2fsck, "-p", c.Device); err == nil {
		return nil
	}
	if _, err := c.run(ctx, paths.E2fsck, "-p", c.Device); err != nil {
		return fmt.Errorf("%s: %s cannot be repaired without help; it was not mounted. Reset the machine, or repair it elsewhere: %w", c.Device, c.Label, err)
	}
	return nil
}

// Do mounts, unless it has been done.
func (m Mount) Do(context.Context) error {
	there, mounted, err := mount.At(m.Target)
	if err != nil {
		return err
	}
	if mounted && there.Source == m.Source {
		return nil
	}
	return m.Mount.Do()
}

// Do asks the kernel to grow; see ext4_resize_fs. The kernel writes each step through the journal.
func (g GrowFilesystem) Do(context.Context) error {
	root, err := os.Open(g.Target)
	if err != nil {
		return fmt.Errorf("%s: cannot grow %s: %w", g.Target, g.Label, err)
	}
	defer root.Close()
	blocks := g.Size / blockSize
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), resizeFS, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("%s: cannot grow %s to %s: %w", g.Target, g.Label, size(g.Size), errno)
	}
	return nil
}

// Do removes the signatures first, then tells the disk that the rest is not needed. A disk that cannot forget keeps
// the old data, unreachable but there; that is no error.
func (w Wipe) Do(context.Context) error {
	device, err := wipeDevice(w.Device)
	if err != nil {
		return fmt.Errorf("%s: cannot wipe %s: %w", w.Device, w.Label, err)
	}
	defer device.Close()
	length, err := device.GetSize()
	if err != nil {
		return fmt.Errorf("%s: cannot wipe %s: %w", w.Device, w.Label, err)
	}
	everything := [2]uint64{0, length}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, device.File().Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&everything[0])))
	return nil
}

// wipeDevice zeroes both ends of a partition and returns it open. It fails with EBUSY if the partition is mounted.
func wipeDevice(path string) (*block.Device, error) {
	device, err := block.NewFromPath(path, block.OpenForWrite(), block.OpenAssertNotMounted())
	if err != nil {
		return nil, err
	}
	length, err := device.GetSize()
	if err == nil {
		err = wipePlace(device, 0, length)
	}
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

// wipePlace zeroes both ends of a part of a disk and waits until that is on the disk.
func wipePlace(device *block.Device, start, length uint64) error {
	zeros := make([]byte, min(length, wipeSize))
	_, first := device.File().WriteAt(zeros, int64(start))
	_, second := device.File().WriteAt(zeros, int64(start+length-uint64(len(zeros))))
	return errors.Join(first, second, device.File().Sync())
}
