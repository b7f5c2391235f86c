// Package parttable writes GPT partition tables in an order that always leaves a valid table after
// a power cut.
package parttable

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

// Open opens a disk ("/dev/vda"). It returns the device, which the caller must close, and the same
// device as the type of the GPT library.
func Open(path string, options ...block.Option) (device *block.Device, disk gpt.Device, err error) {
	device, err = block.NewFromPath(path, options...)
	if err != nil {
		return nil, nil, err
	}
	if disk, err = gpt.DeviceFromBlockDevice(device); err != nil {
		return nil, nil, errors.Join(err, device.Close())
	}
	return device, disk, nil
}

// Read reads the partition table of a disk: the primary table, or its backup at the end of the disk
// if the primary table is damaged or unreadable. The kernel does the same with "gpt" on its command
// line (block/partitions/efi.c).
//
// It reads 2 headers of one sector and at most 128 entries of 128 bytes. A partition that ends
// before it begins, or after the end of the disk, is an error, because computations with its size
// would be wrong.
func Read(disk gpt.Device) (*gpt.Table, error) {
	table, err := gpt.Read(zeroedPrimary{disk})
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

// primarySize is the maximum size of the primary table in bytes: 34 sectors of 4 KiB.
const primarySize = 34 * 4096

// zeroedPrimary is a disk that returns zeros in place of an unreadable primary table. It is
// necessary because the library tries the backup only if the primary table is readable but invalid.
type zeroedPrimary struct{ gpt.Device }

// ReadAt reads from the disk, and returns zeros for an unreadable primary table.
func (d zeroedPrimary) ReadAt(p []byte, offset int64) (int, error) {
	n, err := d.Device.ReadAt(p, offset)
	if err != nil && offset+int64(len(p)) <= primarySize {
		clear(p)
		return len(p), nil
	}
	return n, err
}

// Ordered returns a device that writes a table safely: it writes nothing before Sync, and then the
// backup first (orderedDevice).
func Ordered(disk gpt.Device) gpt.Device { return &orderedDevice{Device: disk} }

// orderedDevice holds writes back until Sync. Sync first writes and flushes the second half of the
// disk with the backup table. It then writes and flushes the first half with the primary table. The
// library itself writes the primary header first and flushes once, so a power cut could damage both
// tables.
type orderedDevice struct {
	gpt.Device
	writes []heldWrite
	// guid replaces the disk GUID in written headers; zero leaves the disk GUID unchanged. The
	// library has no function to set the disk GUID.
	guid uuid.UUID
}

type heldWrite struct {
	offset int64
	data   []byte
}

// WriteAt records a write. A read before Sync would return the old content, but the library does
// not read between its writes and Sync.
func (d *orderedDevice) WriteAt(p []byte, offset int64) (int, error) {
	p = bytes.Clone(p)
	if d.guid != uuid.Nil && bytes.HasPrefix(p, []byte("EFI PART")) {
		setDiskGUID(p, d.guid)
	}
	d.writes = append(d.writes, heldWrite{offset, p})
	return len(p), nil
}

// Sync performs the recorded writes from the end of the disk to its beginning. So the entries of
// the primary table are written before their header.
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

// SetGUID sets the unique GUID of a partition of a disk ("/dev/vda", numbered from 1). The label
// must match, so that no other partition is changed by mistake.
func SetGUID(disk string, number int, label string, guid uuid.UUID) error {
	device, plain, err := Open(disk, block.OpenForWrite())
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", disk, err)
	}
	defer device.Close()
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

// PartitionPath returns the kernel's path of a partition (block/partitions/core.c). The kernel
// inserts a "p" if the name of the disk ends with a digit.
func PartitionPath(disk string, number int) string {
	if last := disk[len(disk)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", disk, number)
	}
	return fmt.Sprintf("%s%d", disk, number)
}
