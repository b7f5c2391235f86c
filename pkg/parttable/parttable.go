// Package parttable writes GPT partition tables so that a power cut never leaves a disk without
// one.
package parttable

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

// Read reads a disk's table: the primary one, or the backup at the disk's end when that is damaged,
// as the kernel does (block/partitions/efi.c, with "gpt" on its command line). A primary one that
// the disk cannot read at all is damaged, too.
//
// It reads 2 headers of one sector and 128 entries of 128 bytes at most. A partition that ends
// before it begins, or behind the end of the disk, is an error: nothing that follows could compute
// with it.
func Read(disk gpt.Device) (*gpt.Table, error) {
	table, err := gpt.Read(lostPrimary{disk})
	if err != nil {
		return nil, err
	}
	sectors := disk.GetSize() / uint64(disk.GetSectorSize())
	for i, p := range table.Partitions() {
		if p != nil && (p.LastLBA < p.FirstLBA || p.LastLBA >= sectors) {
			return nil, fmt.Errorf("partition %d lies at sectors %d to %d of %d: the table is damaged", i+1, p.FirstLBA, p.LastLBA, sectors)
		}
	}
	return table, nil
}

// primarySize is as far as the primary table reaches at most, in bytes: 34 sectors of 4 KiB.
const primarySize = 34 * 4096

// lostPrimary is a disk with zeros where the primary table cannot be read.
type lostPrimary struct{ gpt.Device }

// ReadAt reads what can be read.
func (d lostPrimary) ReadAt(p []byte, offset int64) (int, error) {
	n, err := d.Device.ReadAt(p, offset)
	if err != nil && offset+int64(len(p)) <= primarySize {
		clear(p)
		return len(p), nil
	}
	return n, err
}

// Ordered is the disk to write a table to: nothing is written before its Sync.
func Ordered(disk gpt.Device) gpt.Device { return &orderedDevice{Device: disk} }

// orderedDevice holds writes back until Sync, and then writes the second half of the disk (the
// backup table) before the first (the primary table), each flushed. The library writes the primary
// header first and flushes once, so that a power cut could leave neither table whole.
type orderedDevice struct {
	gpt.Device
	writes []heldWrite
	// guid is the disk's GUID in the headers that are written; zero leaves it as it is. The library
	// cannot change it.
	guid uuid.UUID
}

type heldWrite struct {
	offset int64
	data   []byte
}

// WriteAt notes a write. Reading back before Sync gives the old content; the library does not do
// that.
func (d *orderedDevice) WriteAt(p []byte, offset int64) (int, error) {
	p = bytes.Clone(p)
	if d.guid != uuid.Nil && bytes.HasPrefix(p, []byte("EFI PART")) {
		nameDisk(p, d.guid)
	}
	d.writes = append(d.writes, heldWrite{offset, p})
	return len(p), nil
}

// Sync writes what was noted, from the end of the disk to its beginning. Within the primary table
// that puts the entries before their header.
func (d *orderedDevice) Sync() error {
	slices.SortFunc(d.writes, func(a, b heldWrite) int { return int(b.offset/512) - int(a.offset/512) })
	half := int64(d.GetSize() / 2)
	flushed := false
	for _, w := range d.writes {
		if w.offset < half && !flushed {
			if err := d.Device.Sync(); err != nil {
				return err
			}
			flushed = true
		}
		if _, err := d.Device.WriteAt(w.data, w.offset); err != nil {
			return err
		}
	}
	d.writes = nil
	return d.Device.Sync()
}

// SetGUID gives a partition of a disk ("/dev/vda", numbered from 1) another unique GUID. The label
// must be the partition's, so that another one is never taken for it.
func SetGUID(disk string, number int, label string, guid uuid.UUID) error {
	device, err := block.NewFromPath(disk, block.OpenForWrite())
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", disk, err)
	}
	defer device.Close()
	plain, err := gpt.DeviceFromBlockDevice(device)
	if err != nil {
		return fmt.Errorf("%s: %w", disk, err)
	}
	table, err := Read(Ordered(plain))
	if err != nil {
		return fmt.Errorf("%s: cannot read partition table: %w", disk, err)
	}
	all := table.Partitions()
	if number < 1 || number > len(all) || all[number-1] == nil || all[number-1].Name != label {
		return fmt.Errorf("%s: partition %d is not %s; the table has changed meanwhile", disk, number, label)
	}
	if all[number-1].PartGUID == guid {
		return nil
	}
	all[number-1].PartGUID = guid
	if err := table.Write(); err != nil {
		return fmt.Errorf("%s: cannot write partition table: %w", disk, err)
	}
	return nil
}

// PartitionPath is the kernel's name of a partition (block/partitions/core.c): a disk whose name
// ends in a digit gets a "p" in between.
func PartitionPath(disk string, number int) string {
	if last := disk[len(disk)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", disk, number)
	}
	return fmt.Sprintf("%s%d", disk, number)
}
