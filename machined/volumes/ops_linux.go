package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unsafe"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
	blockswap "github.com/siderolabs/go-blockdevice/v2/swap"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/volumes/swap"
	"github.com/orlop-os/orlop/pkg/copytree"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// typeLinux is the partition type of a Linux file system (Discoverable Partitions Specification).
var typeLinux = uuid.MustParse("0fc63daf-8483-4772-8e79-3d69d8477de4")

// Do stores the record.
func (s SetRecord) Do(context.Context) error {
	records, err := readRecords(s.file)
	if err != nil {
		return err
	}
	return writeRecords(s.file, with(records, s.Record))
}

// Do examines the disk, wipes the space of the new partition, and writes the partition table, the
// backup copy first. The kernel knows the partition when Do returns.
func (c CreatePartition) Do(ctx context.Context) error {
	d, err := c.examine(ctx, c.Disk)
	if err == nil {
		err = c.check(d)
	}
	if err == nil {
		err = c.write()
	}
	if err != nil {
		return fmt.Errorf("%s: cannot create partition %s: %w", c.Disk, c.Name, err)
	}
	return nil
}

// check returns an error for the system disk, and for a disk that has other content than the
// machine's own partitions.
func (c CreatePartition) check(d Disk) error {
	switch {
	case d.Boot:
		return errors.New("it is the system disk")
	case c.NewTable && d.Table != "":
		return fmt.Errorf("it is not blank any more: %s; nothing was changed", d.Table)
	case c.NewTable:
		return nil
	case d.Table != "gpt":
		return errors.New("its partition table is gone; nothing was changed")
	}
	for _, p := range d.Partitions {
		if !slices.Contains(c.known, p.UUID) {
			return fmt.Errorf("it has a foreign partition %s %q; nothing was changed", p.Path, p.Label)
		}
	}
	return nil
}

func (c CreatePartition) write() error {
	device, plain, err := parttable.Open(c.Disk, block.OpenForWrite())
	if err != nil {
		return err
	}
	defer device.Close()
	disk := parttable.Ordered(plain)
	var table *gpt.Table
	if c.NewTable {
		if err := parttable.Wipe(device, 0, plain.GetSize()); err != nil {
			return err
		}
		table, err = gpt.New(disk)
	} else {
		table, err = parttable.Read(disk)
	}
	if err != nil {
		return err
	}
	before := table.Partitions()
	if slices.ContainsFunc(before, func(p *gpt.Partition) bool { return p != nil && p.PartGUID == c.GUID }) {
		return nil
	}
	size := c.Size
	if size == 0 {
		size = table.LargestContiguousAllocatable()
	}
	number, made, err := table.AllocatePartition(size, c.Name, typeLinux, gpt.WithUniqueGUID(c.GUID))
	if err != nil {
		return err
	}
	if err := checkPlace(before, table.Partitions(), number-1); err != nil {
		return err
	}
	sector := uint64(plain.GetSectorSize())
	if err := parttable.Wipe(device, made.FirstLBA*sector, (made.LastLBA-made.FirstLBA+1)*sector); err != nil {
		return err
	}
	return table.Write()
}

// checkPlace returns an error if the new partition overlaps another partition, or if its creation
// has changed the number of another partition. The library does both for some partition tables
// (findings/gpt-partition-order.sh). before and after are the entries of the table, indexed by the
// partition number minus 1; unused entries are nil. made is the index of the new partition.
func checkPlace(before, after []*gpt.Partition, made int) error {
	for i, p := range after {
		switch {
		case i == made:
		case i >= len(before) || before[i] != p:
			return errors.New("the table has a gap that would renumber other partitions; nothing was changed")
		case p != nil && p.FirstLBA <= after[made].LastLBA && after[made].FirstLBA <= p.LastLBA:
			return fmt.Errorf("its partition %d is not in the order of the disk, and would share its space; nothing was changed", i+1)
		}
	}
	return nil
}

// Do grows the partition in the partition table and in the kernel.
func (g GrowPartition) Do(context.Context) error {
	err := func() error {
		device, plain, err := parttable.Open(g.Disk, block.OpenForWrite())
		if err != nil {
			return err
		}
		defer device.Close()
		table, err := parttable.Read(parttable.Ordered(plain))
		if err != nil {
			return err
		}
		i := indexOf(table, g.GUID)
		if i < 0 {
			return errors.New("the partition is gone")
		}
		p := table.Partitions()[i]
		now := (p.LastLBA - p.FirstLBA + 1) * uint64(plain.GetSectorSize())
		if now >= g.Size {
			return nil
		}
		if err := table.GrowPartition(i, g.Size-now); err != nil {
			return err
		}
		return table.Write()
	}()
	if err != nil {
		return fmt.Errorf("%s: cannot grow partition %s: %w", g.Disk, g.Name, err)
	}
	return nil
}

// indexOf returns the index of the partition with a GUID in a table; -1 if there is none.
func indexOf(table *gpt.Table, guid uuid.UUID) int {
	return slices.IndexFunc(table.Partitions(), func(p *gpt.Partition) bool { return p != nil && p.PartGUID == guid })
}

// Do creates the file system with the recorded UUID. The last percent of its space is reserved for
// root.
func (f Format) Do(ctx context.Context) error {
	if f.Kind == swapArea {
		return f.swap()
	}
	label := f.Name[:min(len(f.Name), 16)]
	return mkfs.Ext4(ctx, f.run, f.Device, mkfs.Ext4Options{Label: label, UUID: f.Filesystem, ReservedPercent: 1, Quotas: mkfs.ProjectQuotas})
}

// swap writes the header of a swap area, and returns when the header is on the disk.
func (f Format) swap() error {
	device, err := parttable.WipePartition(f.Device)
	if err == nil {
		err = blockswap.Format(f.Device, blockswap.FormatOptions{Label: f.Name, UUID: f.Filesystem})
		err = errors.Join(err, device.File().Sync(), device.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: cannot format %s as swap: %w", f.Device, f.Name, err)
	}
	return nil
}

// Do starts the use of the swap area.
func (s SwapOn) Do(context.Context) error {
	limit, err := cgroup.Tree(cgroup.Mount).Read(cgroup.System, cgroup.SwapMax)
	if err == nil && limit != "0" {
		err = fmt.Errorf("the system's own memory could be swapped, because %s of control group %s is %q", cgroup.SwapMax, cgroup.System, limit)
	}
	if err == nil {
		flags := uintptr(0)
		if s.Discard {
			flags = blockswap.FLAG_DISCARD
		}
		err = blockswap.On(s.Device, flags)
	}
	return err
}

// Do ends the use of the swap area. The kernel first reads all pages back, which takes minutes on a
// slow disk and cannot be interrupted. If the memory is too small for them, Do returns an error and
// the area stays in use.
func (s SwapOff) Do(context.Context) error { return blockswap.Off(s.Device) }

// Do writes the parameters of zswap.
func (s SetZswap) Do(context.Context) error { return swap.SetZswap(s.Percent) }

// Do runs e2fsck.
func (c Check) Do(ctx context.Context) error {
	if err := mkfs.RepairExt4(ctx, c.run, c.Device); err != nil {
		return fmt.Errorf("%s: volume %s cannot be repaired automatically; it was not mounted. Repair it elsewhere, or give up its data by `orlopctl disk wipe --volume %s`: %w", c.Device, c.Name, c.Name, err)
	}
	return nil
}

// Do mounts the volume and creates its directories. It does not change the owner of an existing
// directory. The kernel needs the module quota_v2; machined/host loads the module for DATA.
func (m Mount) Do(context.Context) error {
	at := mount.Mount{Source: m.Device, Target: root(m.Name), Type: ext4, Flags: m.Flags &^ mount.ReadOnly, Data: m.Data}
	if err := at.Do(); err != nil {
		return err
	}
	for _, d := range m.Dirs {
		dir := filepath.Join(at.Target, d.Name)
		err := os.Mkdir(dir, fs.FileMode(d.Mode))
		if err == nil {
			err = errors.Join(os.Chmod(dir, fs.FileMode(d.Mode)), safefile.SyncDir(at.Target))
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("volume %s: cannot create a directory: %w", m.Name, err)
		}
	}
	if m.Flags&mount.ReadOnly != 0 { // after the creation of the directories
		return mount.Restrict(at.Target, m.Flags)
	}
	return nil
}

// resizeFS is EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h, _IOW('f', 16, __u64). Its argument is the new
// number of blocks.
const resizeFS = 0x40086610

// Do makes the kernel grow the mounted file system.
func (g GrowFilesystem) Do(context.Context) error {
	dir, err := os.Open(g.Target)
	if err != nil {
		return fmt.Errorf("volume %s: cannot grow: %w", g.Name, err)
	}
	defer dir.Close()
	blocks := g.Size / mkfs.Ext4BlockSize
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), resizeFS, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("volume %s: cannot grow: %w", g.Name, errno)
	}
	return nil
}

// Do copies the directory and compares the copy with the original. Then it renames the copy to its
// final name, which nothing uses yet, and renames the original. After a power cut, the next attempt
// starts from the beginning, if the original still has its name.
func (m Move) Do(ctx context.Context) error {
	partial := m.To + ".partial"
	err := m.makeRoom(partial, freeSpace)
	if err == nil {
		err = os.Mkdir(partial, 0o700)
	}
	if err == nil {
		err = copytree.Copy(ctx, m.From, partial)
	}
	if err == nil {
		err = syncFilesystem(partial)
	}
	if err == nil {
		err = copytree.Equal(ctx, m.From, partial)
	}
	if err == nil {
		err = m.replace(partial)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot move to volume %s; it stays on DATA: %w", m.From, m.Name, err)
	}
	return nil
}

// replace renames the complete copy to m.To, and then the original.
func (m Move) replace(partial string) error {
	info, err := os.Stat(m.From)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return os.Rename(partial, m.To) },
		func() error { return safefile.SyncDir(filepath.Dir(m.To)) },
		func() error { return os.RemoveAll(m.From + movedSuffix) },
		func() error { return os.Rename(m.From, m.From+movedSuffix) },
		func() error {
			if !m.Directory {
				return nil
			}
			stat, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				return errors.New("no owner")
			}
			return errors.Join(os.Mkdir(m.From, 0o700), os.Chmod(m.From, info.Mode().Perm()), os.Chown(m.From, int(stat.Uid), int(stat.Gid)))
		},
		func() error { return safefile.SyncDir(filepath.Dir(m.From)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// syncFilesystem returns when all data of the file system of a directory are on the disk.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// makeRoom removes the copies of earlier attempts. It returns an error if the volume then has less
// space than the copy needs plus one twentieth, which the metadata of its file system may need.
func (m Move) makeRoom(partial string, freeSpace func(dir string) (uint64, error)) error {
	need, err := spaceOf(m.From)
	if err != nil {
		return err
	}
	// Services use the original until Link or Bind, so m.To is only an unused copy.
	for _, copied := range []string{partial, m.To} {
		if err := os.RemoveAll(copied); err != nil {
			return err
		}
	}
	free, err := freeSpace(filepath.Dir(m.To))
	if err == nil && need+need/20 > free {
		err = fmt.Errorf("it has %s, and only %s are free there", layout.FormatSize(need), layout.FormatSize(free))
	}
	return err
}

// spaceOf returns the disk space that a directory tree uses, in bytes.
func spaceOf(dir string) (sum uint64, err error) {
	seen := map[uint64]bool{} // inodes of files with several names
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && !seen[s.Ino] {
			sum += uint64(s.Blocks) * 512
			if s.Nlink > 1 && !e.IsDir() {
				seen[s.Ino] = true
			}
		}
		return nil
	})
	return sum, err
}

// freeSpace returns the bytes that are free on the file system of a directory.
func freeSpace(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// Do removes the renamed original.
func (r RemoveMoved) Do(context.Context) error { return os.RemoveAll(r.Path + movedSuffix) }

// Do replaces an empty directory, or a missing one, by the link. It returns an error if the
// directory has an entry.
func (l Link) Do(context.Context) error {
	err := os.MkdirAll(filepath.Dir(l.Path), 0o755)
	if err == nil {
		if err = os.Remove(l.Path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = os.Symlink(l.Target, l.Path)
	}
	if err == nil {
		err = safefile.SyncDir(filepath.Dir(l.Path))
	}
	if err != nil {
		return fmt.Errorf("%s: cannot link to %s: %w", l.Path, l.Target, err)
	}
	return nil
}

// Do mounts the directory of the volume.
func (b Bind) Do(context.Context) error { return mount.Bind(b.From, b.To, b.Flags) }

// Do removes the link; it returns an error if the path is no link. The removal is on the disk when
// Do returns, because a link without a record would block the path for other volumes.
func (u Unlink) Do(context.Context) error {
	_, err := os.Readlink(u.Path)
	if err == nil {
		err = os.Remove(u.Path)
	}
	if err == nil {
		err = safefile.SyncDir(filepath.Dir(u.Path))
	}
	if err != nil {
		return fmt.Errorf("%s: cannot remove the link: %w", u.Path, err)
	}
	return nil
}

// Do detaches the mount.
func (d Detach) Do(context.Context) error {
	if err := unix.Unmount(root(d.Name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("volume %s: cannot detach: %w", d.Name, err)
	}
	return nil
}

// Do unmounts the volume and removes its mount point.
func (u Unmount) Do(context.Context) error {
	if err := mount.Unmount(u.Target); err != nil {
		return err
	}
	return os.Remove(u.Target)
}
