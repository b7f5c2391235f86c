package parttable

import (
	"errors"

	"github.com/siderolabs/go-blockdevice/v2/block"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
)

// WipeSize is the number of bytes to zero at the beginning and at the end of an area: all bytes
// that superblock.Examine reads to find out whether an area is blank.
const WipeSize = superblock.EndSize

// Wipe zeroes both ends of an area of a disk, given in bytes, and waits until the zeros are on the
// disk. This removes the signatures of the old content (superblock.EndSize names an exception).
func Wipe(device *block.Device, start, length uint64) error {
	zeros := make([]byte, min(length, WipeSize))
	_, first := device.File().WriteAt(zeros, int64(start))
	_, second := device.File().WriteAt(zeros, int64(start+length-uint64(len(zeros))))
	return errors.Join(first, second, device.File().Sync())
}

// WipePartition wipes a partition and returns it open. It fails with EBUSY if the partition is
// mounted.
func WipePartition(path string) (*block.Device, error) {
	device, err := block.NewFromPath(path, block.OpenForWrite(), block.OpenAssertNotMounted())
	if err != nil {
		return nil, err
	}
	length, err := device.GetSize()
	if err == nil {
		err = Wipe(device, 0, length)
	}
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}
