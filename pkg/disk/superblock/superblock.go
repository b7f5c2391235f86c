// Package superblock detects the content of a disk or a partition from fixed offsets: the
// superblocks of ext2 to ext4, FAT, ISO 9660, EROFS and swap, and known signatures of other
// formats. It also reads single files from a FAT or ISO 9660 file system that is not mounted.
//
// An attacker can choose every byte of a disk. Therefore each function bounds the number of bytes
// that it reads, the length of the chains that it follows, and its allocations. But a read can
// block if the disk does not answer, so a caller reads a foreign disk in a separate process
// (pkg/diskprobe).
//
// The package does not write to disks.
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

// UnknownData is the kind of an area that is neither blank nor has a known signature.
const UnknownData = "unknown data"

// EndSize is a number of bytes. The two ends of an area are its first and its last EndSize bytes.
// The ends of a blank area contain only zeros, and a wipe zeroes the ends. All signatures in the
// tables of this package are in the ends, except the second superblock of btrfs, at 64 MiB. Of the
// other signatures, the second header of LUKS2 is the farthest from an end of the area, at 4 MiB.
const EndSize = 8 << 20

// Identify reads the known superblocks and signatures. The kind is empty if no superblock or
// signature matches. size is the size of the area in bytes.
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
	if name != "" { // checked before FAT, because the boot sector of NTFS is similar to that of FAT
		return Content{Kind: name}, nil
	}
	if f, err := openFAT(r, size); err == nil {
		return Content{Kind: "vfat", Label: f.label, UUID: f.serial}, nil
	}
	return Content{}, nil
}

// Examine is like Identify, but it also detects unknown content: if no signature matches, and the
// first or last EndSize bytes are not all zero, it returns UnknownData. An error means that the
// area cannot be read.
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

// Unfinished reports whether a partition of the system is blank, or contains the remains of an
// interrupted mke2fs: no signature, and zeros at both ends. mke2fs writes the superblock last, and
// its other writes contain no signature. It never writes into the last 128 KiB: it writes only to
// the beginning of a block group, and it creates no last block group that is so small
// (lib/ext2fs/initialize.c).
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

// Zero reports whether a range, given in bytes, contains only zeros.
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

// errBeyondEnd is the error for an offset that no disk can have.
var errBeyondEnd = errors.New("an offset beyond the end")

// read fills p with the bytes at an offset.
func read(r io.ReaderAt, p []byte, at uint64) error {
	if at > 1<<62 {
		return errBeyondEnd
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

// endsBefore reports whether an error of read means that the area ends before the requested bytes.
// This is not a fault of the disk.
func endsBefore(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errBeyondEnd)
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
