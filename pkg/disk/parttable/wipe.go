package parttable

import (
	"errors"
	"io"

	"github.com/siderolabs/go-blockdevice/v2/block"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
)

// WipeSize is the number of bytes to zero at the beginning and at the end of an area: all bytes
// that superblock.Examine reads to find out whether an area is blank.
const WipeSize = superblock.EndSize

// Wipe zeroes both ends of an area of a disk, given in bytes, and waits until the zeros are on the
// disk. This removes the signatures of the old content (superblock.EndSize names an exception).
func Wipe(device *block.Device, start, length uint64) error {
	return ZeroEnds(device.File(), start, length, WipeSize)
}

// Writer writes to a disk. *os.File implements it.
type Writer interface {
	io.WriterAt
	Sync() error
}

// ZeroEnds zeroes the last and then the first size bytes of an area, given in bytes. The zeros at
// the end are on the disk before the first write at the beginning. So a power cut leaves either the
// signatures at the beginning, or zeros at the end: without signatures, an area with other bytes at
// its end counts as unknown data, which the machine does not overwrite. After an error at the end,
// nothing is written at the beginning.
func ZeroEnds(w Writer, start, length, size uint64) error {
	zeros := make([]byte, min(length, size))
	for _, at := range []uint64{start + length - uint64(len(zeros)), start} {
		if _, err := w.WriteAt(zeros, int64(at)); err != nil {
			return err
		}
		if err := w.Sync(); err != nil {
			return err
		}
	}
	return nil
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
