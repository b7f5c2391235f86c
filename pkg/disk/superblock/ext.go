package superblock

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
)

// Ext is the superblock of an ext2, ext3 or ext4 file system.
type Ext struct {
	Content
	Faults Errors
}

// Errors are the errors that the kernel has recorded in an ext4 file system (fs/ext4/super.c,
// save_error_info). A repair by e2fsck with exit status 0 or 1 clears the record.
type Errors struct {
	// the file system is marked as having errors (EXT4_ERROR_FS)
	Marked bool   `json:"marked"`
	Count  uint32 `json:"count,omitempty"` // since the last check
	First  Error  `json:"first,omitzero"`
	Last   Error  `json:"last,omitzero"`
}

// Any reports whether errors are recorded.
func (f Errors) Any() bool { return f.Marked || f.Count > 0 }

// Error is a recorded error.
type Error struct {
	Time     time.Time `json:"time,omitzero"`
	Function string    `json:"function,omitempty"` // the kernel function that detected it
	Line     uint32    `json:"line,omitempty"`
	Inode    uint32    `json:"inode,omitempty"`
	Block    uint64    `json:"block,omitempty"`
}

// String returns "3 errors, the first at 2026-11-27 10:00:00 UTC in ext4_lookup:1855 (inode 12),
// the last at …".
func (f Errors) String() string {
	if f.Count == 0 {
		return "marked as having errors, of which none is recorded"
	}
	s := fmt.Sprintf("%d errors, the first %s", f.Count, f.First)
	if f.Count == 1 {
		return fmt.Sprintf("1 error, %s", f.First)
	}
	return s + ", the last " + f.Last.String()
}

func (f Error) String() string {
	s := "at an unknown time"
	if !f.Time.IsZero() {
		s = "at " + f.Time.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	if f.Function != "" {
		s += fmt.Sprintf(" in %s:%d", f.Function, f.Line)
	}
	switch {
	case f.Inode != 0 && f.Block != 0:
		s += fmt.Sprintf(" (inode %d, block %d)", f.Inode, f.Block)
	case f.Inode != 0:
		s += fmt.Sprintf(" (inode %d)", f.Inode)
	case f.Block != 0:
		s += fmt.Sprintf(" (block %d)", f.Block)
	}
	return s
}

// Offsets in struct ext4_super_block (fs/ext4/ext4.h), and values of its fields.
const (
	extOffset   = 1024 // offset of the superblock, also its size
	extBlocks   = 0x4
	extShift    = 0x18
	extMagic    = 0x38
	extState    = 0x3a
	extCompat   = 0x5c
	extIncompat = 0x60
	extROCompat = 0x64
	extUUID     = 0x68
	extLabel    = 0x78
	extHigh     = 0x150
	extErrors   = 0x194

	extErrorFS      = 2     // EXT4_ERROR_FS
	extHasJournal   = 0x4   // EXT4_FEATURE_COMPAT_HAS_JOURNAL
	extOnlyIncompat = 0x2c0 // extents, 64-bit, flexible groups: only in ext4
	ext64Bit        = 0x80
	// huge files, group checksums, many subdirectories, large inodes, metadata checksums: only in
	// ext4
	extOnlyRO = 0x478
)

// ReadExt reads the superblock of an ext2, ext3 or ext4 file system. found is false if the area has
// no such superblock.
func ReadExt(r io.ReaderAt) (e Ext, found bool, err error) {
	b := make([]byte, extOffset)
	if err := read(r, b, extOffset); endsBefore(err) {
		return Ext{}, false, nil
	} else if err != nil {
		return Ext{}, false, err
	}
	u16 := func(at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	if u16(extMagic) != 0xef53 || u32(extShift) > 6 { // the maximum block size is 64 KiB
		return Ext{}, false, nil
	}
	e.Kind = "ext2"
	switch {
	case u32(extIncompat)&extOnlyIncompat != 0 || u32(extROCompat)&extOnlyRO != 0:
		e.Kind = "ext4"
	case u32(extCompat)&extHasJournal != 0:
		e.Kind = "ext3"
	}
	blocks := uint64(u32(extBlocks))
	if u32(extIncompat)&ext64Bit != 0 {
		blocks |= uint64(u32(extHigh)) << 32
	}
	e.Size = blocks << (10 + u32(extShift))
	e.Label, e.UUID = text(b[extLabel:extLabel+16]), uuid.UUID(b[extUUID:extUUID+16])
	e.Faults = Errors{Marked: u16(extState)&extErrorFS != 0, Count: u32(extErrors)}
	if e.Faults.Count > 0 {
		at := func(when, inode, block, function, line int) Error {
			f := Error{Function: text(b[function : function+32]), Line: u32(line), Inode: u32(inode), Block: binary.LittleEndian.Uint64(b[block:])}
			if seconds := u32(when); seconds != 0 {
				f.Time = time.Unix(int64(seconds), 0).UTC()
			}
			return f
		}
		e.Faults.First = at(0x198, 0x19c, 0x1a0, 0x1a8, 0x1c8)
		e.Faults.Last = at(0x1cc, 0x1d0, 0x1d8, 0x1e0, 0x1d4)
	}
	return e, true, nil
}
