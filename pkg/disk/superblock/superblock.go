// Package superblock detects the content of a disk or a partition from fixed offsets: the
// superblocks of ext2 to ext4, FAT, ISO 9660, EROFS and swap, and known signatures of other
// formats. It also reads a file from a FAT or ISO 9660 file system without mounting it.
//
// An attacker can choose every byte of a disk. So each function reads a bounded number of bytes,
// limits the length of chains, and limits its allocations by constants. The functions do not wait,
// but a disk may block: a caller reads a foreign disk in a separate process (pkg/diskprobe).
//
// The package does not write or repair.
package superblock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
)

// Content is the content of a disk or a partition.
type Content struct {
	// "ext4", "vfat", "iso9660", "erofs", or the name of another signature; "" if unknown
	Kind  string    `json:"kind"`
	Label string    `json:"label,omitempty"`
	UUID  uuid.UUID `json:"uuid"`
	Size  uint64    `json:"size,omitempty"` // of the file system, in bytes; 0 if unknown
}

// UnknownData is the kind of an area that is not blank and has no known signature.
const UnknownData = "unknown data"

// EndSize is the number of bytes at either end that must be zero in a blank area, and that a wipe
// zeroes. It is more than the distance of any signature in the tables below from either end. The
// second header of LUKS2 is the farthest, at 4 MiB.
const EndSize = 8 << 20

// Identify reads the known superblocks and signatures. The kind is empty without a match. size is
// the size of the area in bytes.
func Identify(r io.ReaderAt, size uint64) (Content, error) {
	if e, found, err := ReadExt(r); err != nil || found {
		return e.Content, err
	}
	if c, found := erofs(r); found {
		return c, nil
	}
	name, err := signature(r, size)
	if err != nil {
		return Content{}, err
	}
	if v, err := openISO(r, size); err == nil {
		return Content{Kind: "iso9660", Label: v.label}, nil
	}
	if name == swapKind {
		return swapArea(r)
	}
	if name != "" { // before FAT, because NTFS and others share its boot sector
		return Content{Kind: name}, nil
	}
	if f, err := openFAT(r, size); err == nil {
		return Content{Kind: "vfat", Label: f.label, UUID: f.serial}, nil
	}
	return Content{}, nil
}

// Examine is like Identify, but it also detects unknown content: in a blank area, EndSize bytes at
// both ends are zero. An error means that the area cannot be read.
func Examine(r io.ReaderAt, size uint64) (Content, error) {
	c, err := Identify(r, size)
	if err != nil || c.Kind != "" {
		return c, err
	}
	ends := min(size, EndSize)
	for _, at := range []uint64{0, size - ends} {
		zero, err := Zero(r, at, ends)
		if err != nil {
			return Content{}, err
		}
		if !zero {
			return Content{Kind: UnknownData}, nil
		}
	}
	return Content{}, nil
}

// Unfinished reports whether one of the machine's own partitions is blank, or contains the remains
// of an interrupted mke2fs. mke2fs writes the superblock last, and it never writes into the last
// 128 KiB, because it creates no block group of this small size (lib/ext2fs/initialize.c). Its
// other writes leave no signature.
func Unfinished(r io.ReaderAt, size uint64) (bool, error) {
	const head, tail = 4096, 128 << 10
	if size < head+tail {
		return false, nil
	}
	if c, err := Identify(r, size); err != nil || c.Kind != "" {
		return false, err
	}
	first, err := Zero(r, 0, head)
	if err != nil || !first {
		return false, err
	}
	return Zero(r, size-tail, tail)
}

// Zero reports whether a range in bytes contains only zeros.
func Zero(r io.ReaderAt, at, length uint64) (bool, error) {
	buffer := make([]byte, min(length, 256<<10))
	for length > 0 {
		part := buffer[:min(length, uint64(len(buffer)))]
		if err := read(r, part, at); err != nil {
			return false, err
		}
		if len(bytes.Trim(part, "\x00")) > 0 {
			return false, nil
		}
		at, length = at+uint64(len(part)), length-uint64(len(part))
	}
	return true, nil
}

// errPlace is returned for an offset beyond every disk.
var errPlace = errors.New("an offset beyond the end")

// read fills p.
func read(r io.ReaderAt, p []byte, at uint64) error {
	if at > 1<<62 {
		return errPlace
	}
	n, err := r.ReadAt(p, int64(at))
	if n == len(p) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("cannot read %d bytes at %d: %w", len(p), at, err)
}

// short reports whether an error means that the area ends before the offset, which is not a fault
// of the disk.
func short(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errPlace)
}

// erofs reads the superblock of EROFS (fs/erofs/erofs_fs.h).
func erofs(r io.ReaderAt) (Content, bool) {
	b := make([]byte, 128)
	if err := read(r, b, 1024); err != nil || binary.LittleEndian.Uint32(b) != 0xe0f5e1e2 {
		return Content{}, false
	}
	return Content{Kind: "erofs", UUID: uuid.UUID(b[48:64]), Label: text(b[64:80])}, true
}

// text returns a field of fixed length without its padding.
func text(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return strings.TrimRight(string(b), " ")
}
