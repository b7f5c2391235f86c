package esp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// storage is a file system that is not mounted.
type storage interface {
	io.ReaderAt
	io.WriterAt
}

// What FAT32 looks like: Microsoft's "FAT: General Overview of On-Disk Format", version 1.03.
const (
	sectorSize  = 512
	slotSize    = 32   // of a folder: one name, or a part of a long one
	deletedSlot = 0xe5 // first byte of a slot that is free again; 0: of one that was never used, nor was any behind it
	folderBit   = 0x10
	longName    = 0x0f
	endOfChain  = 0x0ffffff8
)

// mostClusters of a folder: FAT allows 2 MiB.
const mostClusters = 4096

var errFAT = errors.New("not a FAT32 of ours, or damaged")

// trim makes the slots behind the last name of a folder unused ones. The firmware writes a new name behind all slots that were ever
// used, and takes another cluster for the folder when there is none, in an order in which a power cut can leave it with a folder that it
// cannot read at all (edk2, FatPkg/EnhancedFatDxe/DirectoryManage.c, FatNewEntryPos; FileSpace.c, FatPhysicalDirSize). Trimmed
// before each upgrade, the folder never gets so long. Nothing but free slots is written, from the last one backwards.
func trim(fs storage, folder string) error {
	boot := make([]byte, sectorSize)
	if _, err := fs.ReadAt(boot, 0); err != nil {
		return err
	}
	le := binary.LittleEndian
	cluster, table := int64(boot[13])*sectorSize, int64(le.Uint16(boot[14:]))*sectorSize
	data := table + int64(boot[16])*int64(le.Uint32(boot[36:]))*sectorSize
	if le.Uint16(boot[11:]) != sectorSize || cluster == 0 || le.Uint16(boot[22:]) != 0 || le.Uint16(boot[510:]) != 0xaa55 {
		return errFAT
	}
	// read returns a folder as a whole and where its clusters lie.
	read := func(first uint32) (content []byte, places []int64, err error) {
		entry := make([]byte, 4)
		for at := first; at < endOfChain; at = le.Uint32(entry) & 0x0fffffff {
			if at < 2 || len(places) == mostClusters {
				return nil, nil, errFAT
			}
			places = append(places, data+int64(at-2)*cluster)
			content = slices.Grow(content, int(cluster))[:len(content)+int(cluster)]
			if _, err := fs.ReadAt(content[len(content)-int(cluster):], places[len(places)-1]); err != nil {
				return nil, nil, err
			}
			if _, err := fs.ReadAt(entry, table+4*int64(at)); err != nil {
				return nil, nil, err
			}
		}
		return content, places, nil
	}
	content, places, err := read(le.Uint32(boot[44:]))
	for _, name := range strings.Split(folder, "/") {
		short, first := fmt.Sprintf("%-11s", strings.ToUpper(name)), uint32(0)
		for slot := range slices.Chunk(content, slotSize) {
			if string(slot[:11]) == short && slot[11]&longName != longName && slot[11]&folderBit != 0 {
				first = uint32(le.Uint16(slot[20:]))<<16 | uint32(le.Uint16(slot[26:]))
			}
		}
		if err != nil {
			return err
		}
		content, places, err = read(first)
	}
	if err != nil {
		return err
	}
	end := 0 // behind the last name
	for at := 0; at < len(content) && content[at] != 0; at += slotSize {
		if content[at] != deletedSlot {
			end = at + slotSize
		}
	}
	for at := len(content) - sectorSize; at >= end/sectorSize*sectorSize; at -= sectorSize {
		trimmed := bytes.Clone(content[at : at+sectorSize])
		clear(trimmed[max(0, end-at):])
		if bytes.Equal(trimmed, content[at:at+sectorSize]) {
			continue
		}
		if _, err := fs.WriteAt(trimmed, places[int64(at)/cluster]+int64(at)%cluster); err != nil {
			return err
		}
	}
	return nil
}
