package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/siderolabs/go-blockdevice/v2/blkid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/mkfs"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/parttable"
)

const sysBlock = "/sys/block"

// Read looks at all disks and mounts. An empty card reader is left out, and a disk that cannot be read is one that is nobody's: what the machine
// runs from must not depend on another disk that is dying. Devices that are
// made of others (device mapper, loop, RAM disks, RAID) and optical drives are not disks.
func Read(ctx context.Context) (Have, error) {
	mounts, err := mount.List()
	if err != nil {
		return Have{}, err
	}
	have := Have{Mounts: mounts}
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		return Have{}, fmt.Errorf("disks: cannot list: %w", err)
	}
	boot := bootPartition(mounts)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return Have{}, fmt.Errorf("disks: cannot list: %w", err)
		}
		if !isDisk(filepath.Join(sysBlock, e.Name())) {
			continue
		}
		disk, err := readDisk("/dev/" + e.Name())
		if errors.Is(err, errNoMedium) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			if partitionOf(boot, "/dev/"+e.Name()) {
				return Have{}, fmt.Errorf("/dev/%s: cannot examine: %w", e.Name(), err)
			}
			disk = Disk{Path: "/dev/" + e.Name(), Table: "what cannot be read: " + err.Error(), Size: disk.Size, ReadOnly: true}
		}
		disk.Boot = slices.ContainsFunc(disk.Partitions, func(p Partition) bool { return p.Path == boot })
		have.Disks = append(have.Disks, disk)
	}
	slices.SortFunc(have.Disks, func(a, b Disk) int { return strings.Compare(a.Path, b.Path) })
	return have, nil
}

// partitionOf tells whether a path is that of a disk's partition.
func partitionOf(path, disk string) bool {
	number, found := strings.CutPrefix(path, strings.TrimSuffix(parttable.PartitionPath(disk, 1), "1"))
	return found && number != "" && strings.Trim(number, "0123456789") == ""
}

// isDisk tells real disks from what the kernel makes of them, by the folder in sysfs: only what hangs on a bus has a
// device, and optical drives have type 5 (scsi/scsi_proto.h, TYPE_ROM).
func isDisk(sys string) bool {
	if _, err := os.Stat(filepath.Join(sys, "device")); err != nil {
		return false
	}
	if hidden, err := os.ReadFile(filepath.Join(sys, "hidden")); err == nil && string(hidden) == "1\n" {
		return false // a path of a multipath NVMe disk: the disk itself is listed too
	}
	kind, err := os.ReadFile(filepath.Join(sys, "device", "type"))
	return err != nil || strings.TrimSpace(string(kind)) != "5"
}

// bootPartition is the partition that the mapped root lies on, "" if the root is not mapped.
func bootPartition(mounts []mount.Mount) string {
	root, ok := mountedAt(mounts, "/")
	if !ok {
		return ""
	}
	below, err := os.ReadDir(filepath.Join(sysBlock, filepath.Base(root.Source), "slaves"))
	if err != nil || len(below) == 0 {
		return ""
	}
	return "/dev/" + below[0].Name()
}

var errNoMedium = errors.New("no medium")

func readDisk(path string) (Disk, error) {
	device, err := block.NewFromPath(path)
	if err != nil {
		return Disk{}, err
	}
	defer device.Close()
	sized, err := gpt.DeviceFromBlockDevice(device)
	if err != nil {
		return Disk{}, err
	}
	if sized.GetSize() == 0 {
		return Disk{}, errNoMedium
	}
	sector := uint64(device.GetSectorSize())
	disk := Disk{Path: path, Size: sized.GetSize(), SectorSize: sector, Alignment: 1 << 20}
	if preferred, err := device.GetIOSize(); err == nil {
		disk.Alignment = max(disk.Alignment, uint64(preferred))
	}
	// The table's 128 entries of 128 bytes and its header, at both ends; the protective MBR in front.
	tableSectors := (128*128 + sector - 1) / sector
	disk.First = disk.align((2 + tableSectors) * sector)
	disk.End = disk.Size - (2+tableSectors)*sector
	if disk.ReadOnly, err = device.IsReadOnly(); err != nil {
		return Disk{}, err
	}
	describeDevice(device, &disk)
	table, err := parttable.Read(sized)
	if err != nil {
		disk.Table, err = otherTable(device)
		return disk, err
	}
	disk.Table, disk.BackupAtEnd = "gpt", whole(sized)
	disk.Shared = parttable.Shared(parttable.DiskGUID(sized), table.Partitions())
	for i, p := range table.Partitions() {
		if p == nil {
			continue
		}
		part := Partition{Entry: entryOf(i+1, p, sector), Path: parttable.PartitionPath(path, i+1), UUID: p.PartGUID}
		if part.Content, err = readContent(part.Path); err != nil {
			return disk, err
		}
		disk.Partitions = append(disk.Partitions, part)
	}
	return disk, nil
}

// describeDevice fills in what the hardware says of itself. What it does not say stays empty.
func describeDevice(device *block.Device, disk *Disk) {
	p, err := device.GetProperties()
	if err != nil {
		return
	}
	disk.Model, disk.Serial, disk.WWID = p.Model, p.Serial, p.WWID
	disk.Bus, disk.Transport, disk.Rotational = p.BusPath, p.Transport, p.Rotational
	if disk.Serial == "" {
		page, err := os.ReadFile(filepath.Join(sysBlock, filepath.Base(disk.Path), "device", "vpd_pg80"))
		if err == nil {
			disk.Serial = unitSerial(page)
		}
	}
}

// unitSerial is the serial number in the page of vital product data that SCSI disks, and those of SATA and USB by way of it, have for that (SPC-4,
// 7.8.13); of these the kernel has no attribute "serial". Empty if there is none.
func unitSerial(page []byte) string {
	const head = 4 // the kind of device, 0x80, the length in two bytes
	if len(page) < head || page[1] != 0x80 {
		return ""
	}
	text := page[head:min(len(page), head+int(binary.BigEndian.Uint16(page[2:])))]
	return strings.Trim(string(text), " \x00")
}

// otherTable says what a disk without a GPT holds; "" if it is blank.
func otherTable(device *block.Device) (string, error) {
	info, err := blkid.Probe(device.File(), blkid.WithSkipLocking(true))
	if err == nil && info.Name != "" && info.Name != "gpt" {
		return "a whole-disk " + info.Name, nil
	}
	begin := make([]byte, parttable.WipeSize)
	if _, err := device.File().ReadAt(begin, 0); err != nil {
		return "", err
	}
	switch {
	case allZero(begin):
		return "", nil
	case begin[510] == 0x55 && begin[511] == 0xaa:
		return "an MBR partition table", nil
	}
	return "unknown data", nil
}

// readContent looks for a signature on a partition, through the partition's own device: the disk's has a cache of its
// own, which may be older.
func readContent(path string) (Content, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return Content{Kind: unknownData}, nil // the kernel does not show it: nothing that we could use
		}
		return Content{}, err
	}
	defer f.Close()
	info, err := blkid.Probe(f, blkid.WithSkipLocking(true))
	if err == nil && info.Name != "" {
		c := Content{Kind: info.Name, Size: info.ProbedSize}
		if c.Kind == "ext4" {
			c.Size = ext4Size(f, c.Size)
		}
		if info.Label != nil {
			c.Label = *info.Label
		}
		if info.UUID != nil {
			c.UUID = *info.UUID
		}
		return c, nil
	}
	// No known signature. It is blank only if the place of every superblock that the library does not know is empty:
	// a damaged file system must not be taken for a new partition. (mke2fs writes behind this before it is done.)
	begin := make([]byte, mkfs.Ext4BlockSize)
	if _, err := f.ReadAt(begin, 0); err != nil {
		return Content{Kind: unknownData}, nil // too small to be ours, or unreadable
	}
	btrfs := make([]byte, 8)
	if _, err := f.ReadAt(btrfs, 0x10040); err == nil && bytes.Equal(btrfs, []byte("_BHRfS_M")) {
		return Content{Kind: "btrfs"}, nil
	}
	if !allZero(begin) {
		return Content{Kind: unknownData}, nil
	}
	return Content{}, nil
}

// ext4Size is the size of an ext4 in bytes, with the high half of the number of its blocks (fs/ext4/ext4.h, struct ext4_super_block), which the
// library leaves out: from 16 TiB on it says less. low is what it says.
func ext4Size(f io.ReaderAt, low uint64) uint64 {
	const (
		place    = 1024 // of the superblock
		blocks   = 0x4  // s_blocks_count_lo
		shift    = 0x18 // s_log_block_size
		features = 0x60 // s_feature_incompat
		wide     = 0x80 // EXT4_FEATURE_INCOMPAT_64BIT
		high     = 0x150
	)
	super := make([]byte, place)
	if _, err := f.ReadAt(super, place); err != nil {
		return low
	}
	at := func(offset int) uint64 { return uint64(binary.LittleEndian.Uint32(super[offset:])) }
	if at(features)&wide == 0 || at(shift) > 6 { // blocks of 64 KiB are the largest
		return low
	}
	return (at(high)<<32 | at(blocks)) << (10 + at(shift))
}

const unknownData = "unknown data"

func allZero(b []byte) bool {
	return len(bytes.Trim(b, "\x00")) == 0
}
