// Package writelog makes, from a record of everything that was written to a disk, the disk as a
// power cut may have left it.
//
// The record is the log of QEMU's block driver blklogwrites (MachineSpec's Disk.Record), in the
// format of the kernel's dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst): a
// superblock, then for each operation a sector that describes it and the data. An operation is
// logged when it is done.
//
// What a disk owes after a power cut: everything that was done before a flush that is done, and
// nothing else. Of the writes behind the last flush any may be missing, in any order, and any may
// be torn: a sector of 512 bytes is written whole or not at all. So an instant has many possible
// disks; Survivors draws one of them, and Disk makes it of a disk image.
//
// It knows nothing of partitions or file systems, and judges nothing.
package writelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"
)

// SectorSize is what a disk writes whole or not at all, in bytes. vm has QEMU log in this
// unit.
const SectorSize = 512

// The flags of an operation (drivers/md/dm-log-writes.c).
const (
	flagFlush   = 1 << 0
	flagFUA     = 1 << 1
	flagDiscard = 1 << 2
	flagMark    = 1 << 3
	flags       = flagFlush | flagFUA | flagDiscard | flagMark
)

const (
	magic   = 0x6a736677736872
	version = 1
)

// Op is one operation.
type Op struct {
	Sector, Sectors int64 // its place on the disk; none for a flush
	Flush           bool  // everything before it is on the disk
	Through         bool  // it is on the disk itself (FUA)
	// it has no data: a disk may keep what it was told to forget, so nothing is lost by it
	Discard bool
	End     int64 // where the log goes on behind it, in bytes
}

// data is where the operation's data lies in the log.
func (o Op) data() int64 { return o.End - o.Sectors*SectorSize }

// Log is a record.
type Log struct {
	Ops  []Op
	from io.ReaderAt
}

// Read reads the log of a machine that is off. size is its length in bytes. Where QEMU was killed
// amid an operation, the log ends before it.
func Read(from io.ReaderAt, size int64) (*Log, error) {
	var sector [SectorSize]byte
	if _, err := from.ReadAt(sector[:], 0); err != nil {
		return nil, fmt.Errorf("log of writes: cannot read: %w", err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(sector[8*i:]) }
	if word(0) != magic || word(1) != version || uint32(word(3)) != SectorSize {
		return nil, errors.New("log of writes: not one of QEMU's blklogwrites with sectors of 512 bytes")
	}
	l := &Log{from: from}
	for at := int64(SectorSize); at+SectorSize <= size; {
		if _, err := from.ReadAt(sector[:], at); err != nil {
			return nil, fmt.Errorf("log of writes: cannot read: %w", err)
		}
		kind := word(2)
		op := Op{Sector: int64(word(0)), Sectors: int64(word(1)), Flush: kind&flagFlush != 0, Through: kind&flagFUA != 0, Discard: kind&flagDiscard != 0}
		switch {
		case kind == 0 && op.Sectors == 0:
			return l, nil // what was under way when QEMU was killed
		case kind&^flags != 0 || op.Sector < 0 || op.Sectors < 0 || kind&flagMark != 0:
			return nil, fmt.Errorf("log of writes: damaged at byte %d, behind %d operations", at, len(l.Ops))
		}
		op.End = at + SectorSize
		if !op.Discard {
			op.End += op.Sectors * SectorSize
		}
		if op.End > size {
			return l, nil
		}
		l.Ops, at = append(l.Ops, op), op.End
	}
	return l, nil
}

// Before is how many operations had been logged when the log was so many bytes long.
func (l *Log) Before(length int64) int {
	return sort.Search(len(l.Ops), func(i int) bool { return l.Ops[i].End > length })
}

// Flushed is how many of the first n operations the last flush among them makes sure of.
func (l *Log) Flushed(n int) int {
	for n > 0 && !l.Ops[n-1].Flush {
		n--
	}
	return n
}
