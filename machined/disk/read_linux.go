package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/go-blockdevice/v2/block"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/disk/vpd"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

const sysBlock = diskprobe.Sys

// Examine reads the content of foreign disks. For a disk that it cannot examine, it returns the
// reason.
type Examine func(ctx context.Context, devices []diskprobe.Device) []diskprobe.DeviceResult

// unexamined describes content that must be treated as data.
const unexamined = "content that has not been examined"

// Read reads all disks and mounts. It omits empty card readers, optical drives and devices that the
// kernel builds on others (device mapper, loop, RAM disks, RAID).
//
// This process reads only the boot disk: its partition table and the superblocks of the Orlop
// partitions. Only this system, and persons with physical access, can have written them. examine
// reads all other disks in a separate process, with a time limit for each; a disk that it cannot
// examine is listed as a disk with data. If examine is nil, Read lists the other disks as
// unexamined, and cannot block on them.
func Read(ctx context.Context, examine Examine) (Have, error) {
	mounts, err := mount.List()
	if err != nil {
		return Have{}, err
	}
	devices, err := diskprobe.List(sysBlock)
	if err != nil {
		return Have{}, err
	}
	devices = slices.DeleteFunc(devices, func(d diskprobe.Device) bool { return !isDisk(filepath.Join(sysBlock, d.Name)) })
	disks, err := readAll(ctx, devices, bootPartition(mounts), examine)
	return Have{Disks: disks, Mounts: mounts}, err
}

// readAll reads the boot disk, which has the partition boot, and passes the other disks to
// examine(). It also passes the boot disk if that disk has foreign partitions.
func readAll(ctx context.Context, devices []diskprobe.Device, boot string, examine Examine) ([]Disk, error) {
	var disks []Disk
	var foreign []diskprobe.Device
	for _, d := range devices {
		if !partitionOf(boot, d.Path) {
			foreign = append(foreign, d)
			continue
		}
		own, err := readOwn(d)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot examine: %w", d.Path, err)
		}
		if i := slices.IndexFunc(own.Partitions, func(p Partition) bool { return p.Path == boot }); i >= 0 {
			own.Root = own.Partitions[i].UUID
		}
		disks = append(disks, own)
		if slices.ContainsFunc(own.Partitions, func(p Partition) bool { return !isSystemPartition(p.Entry) }) {
			foreign = append(foreign, d)
		}
	}
	var results []diskprobe.DeviceResult
	if examine != nil {
		results = examine(ctx, foreign)
	} else {
		for _, d := range foreign {
			results = append(results, diskprobe.DeviceResult{Device: d, Err: errUnexamined})
		}
	}
	for _, r := range results {
		if i := slices.IndexFunc(disks, func(d Disk) bool { return d.Path == r.Device.Path }); i >= 0 {
			disks[i].setForeignContents(r)
		} else if d, there := foreignDisk(r); there {
			disks = append(disks, d)
		}
	}
	slices.SortFunc(disks, func(a, b Disk) int { return strings.Compare(a.Path, b.Path) })
	return disks, ctx.Err()
}

var errUnexamined = errors.New(unexamined)

// setForeignContents stores the content of foreign partitions on the boot disk. No decision depends
// on this content.
func (d *Disk) setForeignContents(r diskprobe.DeviceResult) {
	for i, p := range d.Partitions {
		if r.Err == nil && !isSystemPartition(p.Entry) {
			d.Partitions[i].Content = Content(r.Answer.Content(p.Number))
		}
	}
}

// foreignDisk returns a disk from its examination. It returns false for a drive without a medium.
func foreignDisk(r diskprobe.DeviceResult) (Disk, bool) {
	if errors.Is(r.Err, diskprobe.ErrNoMedium) || r.Device.Size == 0 && !r.Device.Removable {
		return Disk{}, false
	}
	a := r.Answer
	disk := newDisk(r.Device)
	switch {
	case errors.Is(r.Err, errUnexamined), errors.Is(r.Err, diskprobe.ErrSkipped):
		disk.Table.Kind = unexamined
	case r.Err != nil:
		disk.Table.Kind = "content that cannot be examined: " + r.Err.Error()
	default:
		disk.resize(a.Size)
		disk.Table.Kind, disk.BackupAtEnd = a.Table, a.Mirrored
		// the signature of the whole disk shows that it is a part of an array; the table belongs to
		// the array
		if a.Table == "gpt" && a.Whole.Kind != "" && a.Whole.Kind != "iso9660" {
			disk.Table.Kind = a.Whole.Kind + " with a GPT partition table"
		}
	}
	for _, e := range a.Entries {
		part := Partition{Entry: Entry{Number: e.Number, Label: e.Label, Type: e.Type, Start: e.Start, Size: e.Size}, UUID: e.UUID,
			Path: parttable.PartitionPath(disk.Path, e.Number), Content: Content(a.Content(e.Number))}
		part.Loader = slices.ContainsFunc(a.Contents, func(h diskprobe.PartitionContent) bool { return h.Number == e.Number && h.Loader })
		disk.Partitions = append(disk.Partitions, part)
	}
	return disk, true
}

// newDisk returns the properties that the kernel reports. It opens no device, so it cannot block on
// a disk.
func newDisk(d diskprobe.Device) Disk {
	disk := Disk{
		Path: d.Path, Hardware: Hardware{SectorSize: d.SectorSize, ReadOnly: d.ReadOnly},
		Table: Table{Alignment: max(1<<20, preferred(filepath.Join(sysBlock, d.Name)))},
	}
	disk.resize(d.Size)
	describeDevice(&disk)
	return disk
}

// resize sets the size and the values derived from it. The table's 128 entries of 128 bytes and its
// header are at both ends; the protective MBR is at the start.
func (d *Disk) resize(size uint64) {
	tableSectors := (128*128 + d.SectorSize - 1) / d.SectorSize
	d.Size, d.First = size, d.align((2+tableSectors)*d.SectorSize)
	if ends := (2 + tableSectors) * d.SectorSize; size > ends {
		d.End = size - ends
	}
}

// preferred returns the preferred write unit of a disk, in bytes; 0 if the disk reports none.
func preferred(sys string) uint64 {
	for _, name := range []string{"optimal_io_size", "minimum_io_size"} {
		text, err := os.ReadFile(filepath.Join(sys, "queue", name))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n&(n-1) == 0 {
			return n
		}
	}
	return 0
}

// partitionOf reports whether path is a partition of the disk.
func partitionOf(path, disk string) bool {
	number, found := strings.CutPrefix(path, strings.TrimSuffix(parttable.PartitionPath(disk, 1), "1"))
	return found && number != "" && strings.Trim(number, "0123456789") == ""
}

// isDisk reports whether a block device is a real disk. Only a device on a bus has an entry
// "device" in its directory in sysfs, so virtual block devices have none. Optical drives, which are
// no disks here, have type 5 (scsi/scsi_proto.h, TYPE_ROM).
func isDisk(sys string) bool {
	if _, err := os.Stat(filepath.Join(sys, "device")); err != nil {
		return false
	}
	if hidden, err := os.ReadFile(filepath.Join(sys, "hidden")); err == nil && string(hidden) == "1\n" {
		return false // a path of a multipath NVMe disk: the disk itself is also listed
	}
	kind, err := os.ReadFile(filepath.Join(sys, "device", "type"))
	return err != nil || strings.TrimSpace(string(kind)) != "5"
}

// bootPartition returns the partition of the mapped root; "" if the root is not mapped.
func bootPartition(mounts []mount.Mount) string {
	root, ok := mount.Topmost(mounts, "/")
	if !ok {
		return ""
	}
	below, err := os.ReadDir(filepath.Join(sysBlock, filepath.Base(root.Source), "slaves"))
	if err != nil || len(below) == 0 {
		return ""
	}
	return "/dev/" + below[0].Name()
}

// readOwn reads the boot disk.
func readOwn(d diskprobe.Device) (Disk, error) {
	device, sized, err := parttable.Open(d.Path)
	if err != nil {
		return Disk{}, err
	}
	defer device.Close()
	disk := newDisk(d)
	disk.Boot = true
	disk.resize(sized.GetSize())
	table, err := parttable.Read(sized)
	if err != nil {
		disk.Table.Kind = "a partition table that cannot be read (" + err.Error() + ")"
		return disk, nil
	}
	disk.Table.Kind, disk.BackupAtEnd = "gpt", parttable.Mirrored(sized)
	disk.Shared = parttable.Shared(parttable.DiskGUID(sized), table.Partitions())
	for i, p := range table.Partitions() {
		if p == nil {
			continue
		}
		part := Partition{Entry: entryOf(i+1, p, disk.SectorSize), Path: parttable.PartitionPath(d.Path, i+1), UUID: p.PartGUID, Content: Content{Kind: unexamined}}
		if isSystemPartition(part.Entry) {
			if part.Content, part.Faults, err = ownContent(part.Path); err != nil {
				return Disk{}, err
			}
			if part.Content.Kind == luksKind {
				if err := part.readEncryption(); err != nil {
					return Disk{}, err
				}
			}
		}
		disk.Partitions = append(disk.Partitions, part)
	}
	return disk, nil
}

// ownContent reads the superblock of an Orlop partition. It uses the device of the partition,
// because the device of the disk has a separate cache, which may be older. It recognizes only Orlop
// file systems; all other content is unknown data.
func ownContent(path string) (Content, superblock.Errors, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		// the kernel has no device for the partition, so the partition is not usable
		return Content{Kind: unknownData}, superblock.Errors{}, nil
	}
	if err != nil {
		return Content{}, superblock.Errors{}, err
	}
	defer f.Close()
	size, err := block.NewFromFile(f).GetSize()
	if err != nil {
		return Content{}, superblock.Errors{}, err
	}
	e, _, _ := superblock.ReadExt(f) // the error is ignored: examineOwn reports unreadable content
	c, err := examineOwn(f, size)
	return c, e.Faults, err
}

// examineOwn distinguishes an Orlop file system, a blank partition or incomplete file system, and
// other content.
func examineOwn(r io.ReaderAt, size uint64) (Content, error) {
	unfinished, err := superblock.Unfinished(r, size)
	if err == nil && unfinished {
		return Content{}, nil
	}
	c, err := superblock.Identify(r, size)
	if err != nil || c.Kind == "" {
		return Content{Kind: unknownData}, nil // also for unreadable content
	}
	c.Label = sanitize.Text(c.Label)
	return Content(c), nil
}

// describeDevice fills in the properties that the hardware reports. Unreported properties stay
// empty. O_PATH does not open the device itself (open(2)).
func describeDevice(disk *Disk) {
	f, err := os.OpenFile(disk.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer f.Close()
	p, err := block.NewFromFile(f).GetProperties()
	if err != nil {
		return
	}
	// sanitized, because the disk may report any bytes
	disk.Model, disk.Serial, disk.WWID = sanitize.Text(p.Model), sanitize.Text(p.Serial), sanitize.Text(p.WWID)
	disk.Bus, disk.Transport, disk.Rotational = p.BusPath, p.Transport, p.Rotational
	if disk.Serial == "" {
		page, err := os.ReadFile(filepath.Join(sysBlock, filepath.Base(disk.Path), "device", "vpd_pg80"))
		if err == nil {
			disk.Serial = sanitize.Text(vpd.Serial(page))
		}
	}
}

const unknownData = superblock.UnknownData
