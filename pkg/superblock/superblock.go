// Package superblock tells what a disk or a partition holds by fixed places of it: the superblocks
// of ext2 to ext4, FAT, ISO 9660 and EROFS, and the signatures of what else is known. It also finds
// one file on a FAT or ISO 9660 file system without mounting it.
//
// An attacker can choose every byte of a disk. So each function reads a bounded number of bytes,
// follows no chain longer than a constant, and allocates no more than a constant. None of them
// waits, but a disk may: a caller reads a disk that is not the machine's own in a separate process
// (pkg/diskprobe).
//
// The package writes nothing, and does not repair.
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

// Content is what a disk or a partition holds.
type Content struct {
	// "ext4", "vfat", "iso9660", "erofs", the name of another signature; "" for none that is known
	Kind  string    `json:"kind"`
	Label string    `json:"label,omitempty"`
	UUID  uuid.UUID `json:"uuid"`
	Size  uint64    `json:"size,omitempty"` // of the file system, in bytes; 0 when not known
}

// UnknownData is the kind of what is not blank, and has no signature that is known.
const UnknownData = "unknown data"

// EndSize is how much of either end has to be zero for a place to be blank, and how much of either
// end is zeroed by a wipe, in bytes: more than any signature in the table below lies away from
// either. LUKS2 keeps its second header furthest in, at 4 MiB.
const EndSize = 8 << 20

// Identify reads the superblocks and signatures that are known. The kind is empty if there is none.
// size is that of the place, in bytes.
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
	if name != "" { // before FAT, whose boot sector NTFS and others share
		return Content{Kind: name}, nil
	}
	if f, err := openFAT(r, size); err == nil {
		return Content{Kind: "vfat", Label: f.label, UUID: f.serial}, nil
	}
	return Content{}, nil
}

// Examine is Identify, and tells what is not blank although nothing is known of it: both ends have
// to be zero for EndSize bytes. An error means that the place cannot be read.
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

// Unfinished tells whether one of the machine's own partitions holds nothing, or an ext4 that
// mke2fs did not finish: it writes its superblock last, and never into the last 128 KiB, because it
// makes no group of blocks as small as that (lib/ext2fs/initialize.c). Where it does write, it
// leaves no signature.
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

// Zero tells whether a range, in bytes, holds zeros alone.
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

// errPlace is an offset behind every disk.
var errPlace = errors.New("an offset behind the end")

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

// short tells whether an error says that the place ends before what was looked for, which is no
// fault of the disk.
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

// text is a field of fixed length, without what fills it up.
func text(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return strings.TrimRight(string(b), " ")
}
