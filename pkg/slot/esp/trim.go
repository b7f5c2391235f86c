package esp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/orlop-os/orlop/pkg/slot"
)

// storage is the device of a file system that is not mounted.
type storage interface {
	io.ReaderAt
	io.WriterAt
}

// Constants of FAT32 (Microsoft, "FAT: General Overview of On-Disk Format", version 1.03).
const (
	sectorSize = 512
	slotSize   = 32 // size of a directory slot: a short name, or a part of a long name
	// first byte of a freed slot; a first byte of 0 means that this slot and all slots after it
	// were never used
	deletedSlot  = 0xe5
	directoryBit = 0x10       // attribute bit of a directory
	longName     = 0x0f       // attribute value of a part of a long name
	endOfChain   = 0x0ffffff8 // end of the cluster chain of a file, or any higher value
)

// Maximum sizes: 2 MiB (65536 slots) for a directory, 255 characters for a name.
const (
	maxDirectory = 2 << 20
	maxName      = 255
)

var errFAT = errors.New("not a FAT32 of Orlop OS, or damaged")

// directory is a directory in memory.
type directory struct {
	fs      storage
	content []byte
	places  []int64 // offsets of its clusters on the device
	cluster int64   // size of a cluster in bytes
}

// openDirectory reads the directory dir from a FAT32. It fails with errFAT if the file system is
// damaged or has another layout.
func openDirectory(fs storage, dir string) (directory, error) {
	boot := make([]byte, sectorSize)
	if _, err := fs.ReadAt(boot, 0); err != nil {
		return directory{}, err
	}
	le := binary.LittleEndian
	cluster, table := int64(boot[13])*sectorSize, int64(le.Uint16(boot[14:]))*sectorSize
	data := table + int64(boot[16])*int64(le.Uint32(boot[36:]))*sectorSize
	if le.Uint16(boot[11:]) != sectorSize || cluster == 0 || le.Uint16(boot[22:]) != 0 || le.Uint16(boot[510:]) != 0xaa55 {
		return directory{}, errFAT
	}
	read := func(first uint32) (d directory, err error) {
		d = directory{fs: fs, cluster: cluster}
		entry := make([]byte, 4)
		for at := first; at < endOfChain; at = le.Uint32(entry) & 0x0fffffff {
			if at < 2 || int64(len(d.content))+cluster > max(maxDirectory, cluster) {
				return directory{}, errFAT
			}
			d.places = append(d.places, data+int64(at-2)*cluster)
			d.content = slices.Grow(d.content, int(cluster))[:len(d.content)+int(cluster)]
			if _, err := fs.ReadAt(d.content[len(d.content)-int(cluster):], d.places[len(d.places)-1]); err != nil {
				return directory{}, err
			}
			if _, err := fs.ReadAt(entry, table+4*int64(at)); err != nil {
				return directory{}, err
			}
		}
		return d, nil
	}
	d, err := read(le.Uint32(boot[44:]))
	for _, name := range strings.Split(dir, "/") {
		short, first := fmt.Sprintf("%-11s", strings.ToUpper(name)), uint32(0)
		for slot := range slices.Chunk(d.content, slotSize) {
			if string(slot[:11]) == short && slot[11]&longName != longName && slot[11]&directoryBit != 0 {
				first = firstCluster(slot)
			}
		}
		if err != nil {
			return directory{}, err
		}
		d, err = read(first)
	}
	return d, err
}

// firstCluster returns the number of the first cluster of a file; 0 for an empty file. slot is the
// slot with its short name.
func firstCluster(slot []byte) uint32 {
	return uint32(binary.LittleEndian.Uint16(slot[20:]))<<16 | uint32(binary.LittleEndian.Uint16(slot[26:]))
}

// write replaces the sector at the offset `at` of the directory. If the content of the sector is
// the same, it writes nothing.
func (d directory) write(at int, sector []byte) error {
	if bytes.Equal(sector, d.content[at:at+sectorSize]) {
		return nil
	}
	copy(d.content[at:], sector)
	_, err := d.fs.WriteAt(sector, d.places[int64(at)/d.cluster]+int64(at)%d.cluster)
	return err
}

// trim marks the slots after the last name of a directory as never used. It writes only free slots,
// beginning at the end of the directory.
//
// The firmware writes a new name after all slots that were ever used. If there is no space, the
// firmware adds a cluster to the directory, and a power cut at that time can leave an unreadable
// directory (edk2, FatPkg/EnhancedFatDxe/DirectoryManage.c, FatNewEntryPos; FileSpace.c,
// FatPhysicalDirSize). A trim before each upgrade keeps space free.
func trim(fs storage, dir string) error {
	d, err := openDirectory(fs, dir)
	if err != nil {
		return err
	}
	end := 0 // offset after the last name
	for at := 0; at < len(d.content) && d.content[at] != 0; at += slotSize {
		if d.content[at] != deletedSlot {
			end = at + slotSize
		}
	}
	for at := len(d.content) - sectorSize; at >= end/sectorSize*sectorSize; at -= sectorSize {
		trimmed := bytes.Clone(d.content[at : at+sectorSize])
		clear(trimmed[max(0, end-at):])
		if err := d.write(at, trimmed); err != nil {
			return err
		}
	}
	return nil
}

// fileName is a long name of a file in a directory.
type fileName struct {
	text  string
	first uint32 // first cluster of the file
	slots []int  // offsets in the directory; the last offset is that of the short name
}

// files returns the files of a directory that have a long name. All entries have a long name.
func (d directory) files() []fileName {
	var all []fileName
	var now fileName
	var text []uint16
	for at := 0; at+slotSize <= len(d.content) && d.content[at] != 0; at += slotSize {
		s := d.content[at : at+slotSize]
		switch {
		case s[0] == deletedSlot:
			now, text = fileName{}, nil
		case s[11]&longName == longName: // the last part of the name comes first
			var part []uint16
			for _, r := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
				for c := range slices.Chunk(s[r[0]:r[1]], 2) {
					part = append(part, binary.LittleEndian.Uint16(c))
				}
			}
			// With too many parts, the short name must be missing.
			if now.slots, text = append(now.slots, at), append(part, text...); len(text) > maxName+13 {
				now, text = fileName{}, nil
			}
		default:
			if end := slices.Index(text, 0); end >= 0 {
				text = text[:end]
			}
			if len(text) > 0 && s[11]&directoryBit == 0 {
				now.text, now.first, now.slots = string(utf16.Decode(text)), firstCluster(s), append(now.slots, at)
				all = append(all, now)
			}
			now, text = fileName{}, nil
		}
	}
	return all
}

// removeDuplicates leaves a single name for each boot image. A rename by Linux or by the firmware
// can leave both names on the disk after a power cut. Then the removal of a name would free the
// clusters of the other name. removeDuplicates marks the slots of a name as free, and does not
// change the file. The name that stays is the target of the rename, so a repeated rename continues
// from it.
func removeDuplicates(fs storage, dir string) error {
	d, err := openDirectory(fs, dir)
	if err != nil {
		return err
	}
	rank := func(f fileName) int { // the name with the highest rank stays
		switch entry, ours := slot.ParseEntry(f.text); {
		case !ours: // the file is not complete
			return math.MinInt
		case entry.Failed():
			return 2
		case !entry.Trial:
			return 1
		default:
			return -entry.Left
		}
	}
	byCluster := map[uint32][]fileName{}
	for _, f := range d.files() {
		if _, ours := slot.ParseEntry(f.text); f.first != 0 && (ours || path.Ext(f.text) == unfinished) {
			byCluster[f.first] = append(byCluster[f.first], f)
		}
	}
	for _, names := range byCluster {
		slices.SortFunc(names, func(a, b fileName) int { return cmp.Compare(rank(b), rank(a)) })
		for _, f := range names[1:] {
			// The short name is freed first, because the parts of a long name have no effect
			// without it.
			for _, at := range slices.Backward(f.slots) {
				begin := at / sectorSize * sectorSize
				sector := bytes.Clone(d.content[begin : begin+sectorSize])
				sector[at-begin] = deletedSlot
				if err := d.write(begin, sector); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
