package superblock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/google/uuid"
)

// Limits for reading a FAT or ISO 9660 file system. The rest of a longer directory is ignored. A
// longer chain is an error.
const (
	maxDirectory = 1 << 20 // bytes of a directory
	maxChain     = 1 << 16 // clusters of a file
)

var errNoFAT = errors.New("no FAT file system")

// fat is an opened FAT12, FAT16 or FAT32 file system (Microsoft Extensible Firmware Initiative
// FAT32 File System Specification, 1.03).
type fat struct {
	r        io.ReaderAt
	bits     int    // width of a table entry: 12, 16 or 32
	table    uint64 // offset of the first table in bytes
	data     uint64 // offset of cluster 2
	cluster  uint64 // bytes
	clusters uint64 // number of clusters, numbered from 2
	root     uint32 // FAT32: first cluster of the root
	rootAt   uint64 // FAT12 and FAT16: offset of the root
	rootSize uint64 // and its size in bytes
	label    string
	serial   uuid.UUID // the last four bytes are the serial number of the volume
}

// openFAT reads the boot sector of a FAT file system.
func openFAT(r io.ReaderAt, size uint64) (*fat, error) {
	b := make([]byte, 512)
	if err := read(r, b, 0); err != nil {
		return nil, err
	}
	u16 := func(at int) uint64 { return uint64(binary.LittleEndian.Uint16(b[at:])) }
	u32 := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(b[at:])) }
	bytesPer, perCluster, reserved, tables, entries := u16(11), uint64(b[13]), u16(14), uint64(b[16]), u16(17)
	sectors, length := u16(19), u16(22)
	if sectors == 0 {
		sectors = u32(32)
	}
	wide := length == 0
	if wide {
		length = u32(36)
	}
	valid := b[510] == 0x55 && b[511] == 0xaa && (bytesPer == 512 || bytesPer == 1024 || bytesPer == 2048 || bytesPer == 4096) &&
		perCluster > 0 && perCluster&(perCluster-1) == 0 && bytesPer*perCluster <= 256<<10 && reserved > 0 && (tables == 1 || tables == 2) &&
		length > 0 && (entries > 0) != wide && (b[21] == 0xf0 || b[21] >= 0xf8)
	if !valid {
		return nil, errNoFAT
	}
	f := &fat{r: r, cluster: bytesPer * perCluster, table: reserved * bytesPer}
	f.rootAt, f.rootSize = f.table+tables*length*bytesPer, entries*32
	f.data = f.rootAt + (f.rootSize+bytesPer-1)/bytesPer*bytesPer
	if end := sectors * bytesPer; end > size || end <= f.data {
		return nil, errNoFAT
	} else if f.clusters = (end - f.data) / f.cluster; f.clusters == 0 {
		return nil, errNoFAT
	}
	f.bits = 16
	boot := 38 // offset of the extended boot record: a signature, the volume number, the label
	switch {
	case wide:
		f.bits, f.root, boot = 32, uint32(u32(44))&0x0fffffff, 66
	case f.clusters < 4085:
		f.bits = 12
	}
	if b[boot] == 0x29 {
		copy(f.serial[12:], []byte{b[boot+4], b[boot+3], b[boot+2], b[boot+1]})
		if f.label = text(b[boot+5 : boot+16]); f.label == "NO NAME" {
			f.label = ""
		}
	}
	if label, err := f.volumeLabel(); err == nil && label != "" {
		f.label = label
	}
	return f, nil
}

// next returns the cluster that follows a cluster in a file; last is true if the file ends with the
// given cluster.
func (f *fat) next(cluster uint32) (next uint32, last bool, err error) {
	b := make([]byte, 4)
	n := uint64(cluster)
	switch f.bits {
	case 12:
		err = read(f.r, b[:2], f.table+n+n/2)
		next = uint32(binary.LittleEndian.Uint16(b)) >> (4 * (n & 1)) & 0xfff
		last = next >= 0xff8
	case 16:
		err = read(f.r, b[:2], f.table+2*n)
		next = uint32(binary.LittleEndian.Uint16(b))
		last = next >= 0xfff8
	default:
		err = read(f.r, b, f.table+4*n)
		next = binary.LittleEndian.Uint32(b) & 0x0fffffff
		last = next >= 0x0ffffff8
	}
	return next, last, err
}

// errChain is the error for a cyclic or invalid cluster chain.
var errChain = errors.New("the file system is damaged: a chain of clusters does not end")

// chain reads a file from its first cluster to the end of its cluster chain, but at most `most`
// bytes.
func (f *fat) chain(cluster uint32, most uint64) ([]byte, error) {
	var out []byte
	for range maxChain {
		if cluster < 2 || uint64(cluster-2) >= f.clusters {
			return nil, errChain
		}
		part := make([]byte, min(f.cluster, most-uint64(len(out))))
		if err := read(f.r, part, f.data+uint64(cluster-2)*f.cluster); err != nil {
			return nil, err
		}
		if out = append(out, part...); uint64(len(out)) >= most {
			return out, nil
		}
		next, last, err := f.next(cluster)
		if err != nil || last {
			return out, err
		}
		cluster = next
	}
	return nil, errChain
}

// rootDirectory reads the root directory.
func (f *fat) rootDirectory() ([]byte, error) {
	if f.bits == 32 {
		return f.chain(f.root, maxDirectory)
	}
	out := make([]byte, min(f.rootSize, maxDirectory))
	return out, read(f.r, out, f.rootAt)
}

// Attributes of a directory entry.
const (
	fatVolume    = 0x08
	fatDirectory = 0x10
	fatLong      = 0x0f // a part of a long name
)

// fatEntry is a file or directory.
type fatEntry struct {
	short, long string
	isDir       bool
	cluster     uint32
	size        uint64
}

// volumeLabel returns the label in the root directory, which has priority over the label in the
// boot sector.
func (f *fat) volumeLabel() (string, error) {
	dir, err := f.rootDirectory()
	if err != nil {
		return "", err
	}
	for e := range slices.Chunk(dir, 32) {
		if len(e) < 32 || e[0] == 0 {
			break
		}
		if e[0] != 0xe5 && e[11]&0x3f != fatLong && e[11]&fatVolume != 0 {
			return text(e[:11]), nil
		}
	}
	return "", nil
}

// list calls the function each for the entries of a directory, until each returns false.
func (f *fat) list(dir []byte, each func(fatEntry) bool) {
	var long []uint16
	for len(dir) >= 32 {
		e := dir[:32]
		dir = dir[32:]
		switch {
		case e[0] == 0:
			return
		case e[0] == 0xe5:
			long = nil
		case e[11]&0x3f == fatLong:
			if e[0]&0x40 != 0 {
				long = nil
			}
			if len(long) <= 255 { // the parts are stored in reverse order
				long = append(longPart(e), long...)
			}
		default:
			one := fatEntry{isDir: e[11]&fatDirectory != 0, size: uint64(binary.LittleEndian.Uint32(e[28:]))}
			one.cluster = uint32(binary.LittleEndian.Uint16(e[26:]))
			if f.bits == 32 {
				one.cluster |= uint32(binary.LittleEndian.Uint16(e[20:])) << 16
			}
			one.short = strings.TrimRight(string(e[:8]), " ")
			if extension := strings.TrimRight(string(e[8:11]), " "); extension != "" {
				one.short += "." + extension
			}
			one.long, long = string(utf16.Decode(long)), nil
			if e[11]&fatVolume == 0 && !each(one) {
				return
			}
		}
	}
}

// longPart returns the characters of a long name, at most 13, that a directory entry holds.
func longPart(e []byte) []uint16 {
	var out []uint16
	for _, place := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
		for at := place[0]; at < place[1]; at += 2 {
			unit := binary.LittleEndian.Uint16(e[at:])
			if unit == 0 {
				return out
			}
			out = append(out, unit)
		}
	}
	return out
}

// FATFile reads a file by its path ("EFI/BOOT/BOOTX64.EFI"), regardless of case. A file of more
// than `most` bytes is an error. For a missing file the error is fs.ErrNotExist.
func FATFile(r io.ReaderAt, size uint64, name string, most uint64) ([]byte, error) {
	f, e, err := fatFind(r, size, name)
	switch {
	case err != nil:
		return nil, err
	case e.isDir:
		return nil, fmt.Errorf("%s is not a plain file", name)
	case e.size > most:
		return nil, fmt.Errorf("%s has %d bytes; at most %d are allowed", name, e.size, most)
	case e.size == 0:
		return []byte{}, nil
	}
	out, err := f.chain(e.cluster, e.size)
	if err == nil && uint64(len(out)) < e.size {
		err = errChain
	}
	return out, err
}

// FATHas reports whether a file that is not a directory exists.
func FATHas(r io.ReaderAt, size uint64, name string) (bool, error) {
	_, e, err := fatFind(r, size, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && !e.isDir, err
}

func fatFind(r io.ReaderAt, size uint64, name string) (*fat, fatEntry, error) {
	f, err := openFAT(r, size)
	if err != nil {
		return nil, fatEntry{}, err
	}
	dir, err := f.rootDirectory()
	if err != nil {
		return nil, fatEntry{}, err
	}
	parts := strings.Split(name, "/")
	for i, part := range parts {
		var found *fatEntry
		f.list(dir, func(e fatEntry) bool {
			if strings.EqualFold(e.long, part) || strings.EqualFold(e.short, part) {
				found = &e
			}
			return found == nil
		})
		switch {
		case found == nil:
			return nil, fatEntry{}, fmt.Errorf("has no file %s: %w", name, fs.ErrNotExist)
		case i == len(parts)-1:
			return f, *found, nil
		case !found.isDir:
			return nil, fatEntry{}, fmt.Errorf("has no file %s: %w", name, fs.ErrNotExist)
		}
		if dir, err = f.chain(found.cluster, maxDirectory); err != nil {
			return nil, fatEntry{}, err
		}
	}
	return nil, fatEntry{}, fmt.Errorf("has no file %s: %w", name, fs.ErrNotExist)
}
