// Package writelog makes disk images as they can be after a power cut, from a record of all writes
// to the disk.
//
// The record is the log of QEMU's block driver blklogwrites (vm.Disk.Record), in the format of the
// kernel's dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst). The record has a
// superblock and then, for each operation, a sector with the description of the operation, and the
// written data. QEMU logs an operation after its completion.
//
// After a power cut, a disk has all operations that were completed before a completed flush. Each
// write after the last flush may be missing or torn, independently of the other writes. Of a torn
// write, only some sectors are on the disk; a sector of 512 bytes is written completely or not at
// all. So a power cut at a given instant has many possible results. Survivors draws one of these
// results at random, and Disk gives a disk image this content.
//
// The package does not interpret partitions or file systems, and makes no checks of the content.
package writelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"
)

// SectorSize is the number of bytes that a disk writes atomically. Package vm sets it as the sector
// size of QEMU's log.
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

// Op is an operation on the disk.
type Op struct {
	Sector, Sectors int64 // position on the disk and length, in sectors; zero for a flush
	Flush           bool  // all earlier operations are on the disk
	Through         bool  // the data of the operation is on the disk, without a flush (FUA)
	// Discard is an operation without data. A disk may keep discarded data, so the operation has no
	// effect here.
	Discard bool
	End     int64 // offset of the next operation in the log, in bytes
}

// data returns the offset of the operation's data in the log, in bytes.
func (o Op) data() int64 { return o.End - o.Sectors*SectorSize }

// Log is the record of a disk.
type Log struct {
	Ops  []Op
	from io.ReaderAt
}

// Read reads the log of a machine that is off. size is the length of the log in bytes. If QEMU was
// killed during an operation, the log ends before this operation. Read fails if the log is damaged.
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
			return l, nil // the operation in progress when QEMU was killed
		case kind&^flags != 0 || op.Sector < 0 || op.Sectors < 0 || kind&flagMark != 0:
			return nil, fmt.Errorf("log of writes: damaged at byte %d, after %d operations", at, len(l.Ops))
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

// Before returns the number of whole operations in the first length bytes of the log.
func (l *Log) Before(length int64) int {
	return sort.Search(len(l.Ops), func(i int) bool { return l.Ops[i].End > length })
}

// Flushed returns the number of operations up to the last flush, including the flush, among the
// first n operations.
func (l *Log) Flushed(n int) int {
	for n > 0 && !l.Ops[n-1].Flush {
		n--
	}
	return n
}
