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
)

// The layout of an ISO 9660 volume (ECMA-119): each descriptor is a sector, and the descriptors
// begin at the 17th sector.
const (
	isoSector      = 2048
	isoFirst       = 16 // sector of the first descriptor
	maxDescriptors = 64 // maximum number of examined descriptors

	isoPrimary = 1
	// version 1: another character set, as in Joliet; version 2: enhanced, as in ISO 9660:1999
	// (level 4)
	isoSupplementary = 2
	isoTerminator    = 255
)

var errNoISO = errors.New("no ISO 9660 file system")

// iso is an opened ISO 9660 volume.
type iso struct {
	r     io.ReaderAt
	label string
	trees []isoTree // ISOFile searches them in this order
}

// isoTree is a directory hierarchy. A volume can have several, with the same files under other
// names.
type isoTree struct {
	block  uint64 // block size in bytes
	root   isoRecord
	joliet bool // names are in big-endian UTF-16
}

// isoRecord is an entry of a directory.
type isoRecord struct {
	names []string
	place uint64 // offset in bytes
	size  uint64
	isDir bool
	plain bool // a regular file in a single extent
}

// openISO reads the descriptors. The label comes from the first descriptor that has a label, in the
// order primary, Joliet, enhanced. Joliet and enhanced descriptors are both supplementary, but only
// the label of a Joliet descriptor is in UTF-16.
func openISO(r io.ReaderAt, size uint64) (*iso, error) {
	v := &iso{r: r}
	labels := map[string]string{}
	for i := range uint64(maxDescriptors) {
		d := make([]byte, isoSector)
		if at := (isoFirst + i) * isoSector; at+isoSector > size {
			break
		} else if err := read(r, d, at); err != nil {
			return nil, err
		}
		if string(d[1:6]) != "CD001" || d[0] == isoTerminator {
			break
		}
		kind := descriptorKind(d)
		if kind == "" {
			continue
		}
		tree := isoTree{block: uint64(binary.LittleEndian.Uint16(d[128:])), joliet: kind == "joliet"}
		if tree.block != 512 && tree.block != 1024 && tree.block != 2048 {
			continue
		}
		root, _, ok := tree.record(d[156 : 156+34])
		if !ok {
			continue
		}
		tree.root = root
		v.trees = append(v.trees, tree)
		if _, seen := labels[kind]; !seen {
			labels[kind] = isoText(d[40:72], tree.joliet)
		}
	}
	if len(v.trees) == 0 {
		return nil, errNoISO
	}
	for _, kind := range []string{"primary", "joliet", "enhanced"} {
		if v.label = labels[kind]; v.label != "" {
			break
		}
	}
	return v, nil
}

// descriptorKind returns "primary", "joliet" or "enhanced". It returns "" for a descriptor that
// this package cannot read.
func descriptorKind(d []byte) string {
	switch {
	case d[0] == isoPrimary:
		return "primary"
	case d[0] != isoSupplementary:
		return ""
	case d[6] == 2:
		return "enhanced"
	case slices.Contains([]string{"%/@", "%/C", "%/E"}, string(d[88:91])):
		return "joliet"
	}
	return ""
}

// isoText decodes a text field of fixed length; wide means big-endian UTF-16.
func isoText(b []byte, wide bool) string {
	if !wide {
		return strings.TrimRight(string(b), " \x00")
	}
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = binary.BigEndian.Uint16(b[2*i:])
	}
	return strings.TrimRight(string(utf16.Decode(units)), " \x00")
}

// record parses the directory entry at the beginning of b, which ends with its sector. length is 0
// if b contains no entry. ok is false for an invalid entry.
func (t isoTree) record(b []byte) (r isoRecord, length int, ok bool) {
	const fixed = 33
	if len(b) <= fixed || b[0] == 0 {
		return isoRecord{}, 0, false
	}
	length = int(b[0])
	name := int(b[32])
	if length > len(b) || fixed+name > length {
		return isoRecord{}, length, false
	}
	r.place = uint64(binary.LittleEndian.Uint32(b[2:])) * t.block
	r.size = uint64(binary.LittleEndian.Uint32(b[10:]))
	r.isDir = b[25]&0x02 != 0
	r.plain = b[25]&0x82 == 0 // neither a directory nor in several extents
	text := isoText(b[fixed:fixed+name], t.joliet)
	text, _, _ = strings.Cut(text, ";") // version number of the file
	r.names = []string{strings.TrimSuffix(text, ".")}
	use := b[fixed+name : length]
	if name%2 == 0 && len(use) > 0 {
		use = use[1:]
	}
	rockRidge(use, &r)
	return r, length, true
}

// rockRidge adds the POSIX name of a file to r (RRIP 1.12, NM), and marks a symbolic link (SL).
func rockRidge(use []byte, r *isoRecord) {
	var name strings.Builder
	for len(use) >= 4 {
		length := int(use[2])
		if length < 4 || length > len(use) {
			break
		}
		switch string(use[:2]) {
		case "NM":
			if length > 5 {
				name.Write(use[5:length])
			}
		case "SL":
			r.plain = false
		}
		use = use[length:]
	}
	if name.Len() > 0 {
		r.names = append(r.names, name.String())
	}
}

// ISOFile reads a file in the root directory, regardless of case. A file of more than `most` bytes
// is an error. For a missing file the error is fs.ErrNotExist.
func ISOFile(r io.ReaderAt, size uint64, name string, most uint64) ([]byte, error) {
	v, err := openISO(r, size)
	if err != nil {
		return nil, err
	}
	for _, t := range v.trees {
		found, err := v.find(t, name)
		switch {
		case err != nil:
			return nil, err
		case found == nil:
			continue
		case !found.plain:
			return nil, fmt.Errorf("%s is not a plain file", name)
		case found.size > most:
			return nil, fmt.Errorf("%s has %d bytes; at most %d are allowed", name, found.size, most)
		}
		out := make([]byte, found.size)
		return out, read(r, out, found.place)
	}
	return nil, fmt.Errorf("has no file %s: %w", name, fs.ErrNotExist)
}

// find returns a file in the root directory of a tree, or nil.
func (v *iso) find(t isoTree, name string) (*isoRecord, error) {
	if !t.root.isDir {
		return nil, nil
	}
	dir := make([]byte, min(t.root.size, maxDirectory))
	if err := read(v.r, dir, t.root.place); err != nil {
		return nil, err
	}
	for at := 0; at < len(dir); {
		// No entry crosses the end of a sector.
		rest := dir[at:min(len(dir), at/isoSector*isoSector+isoSector)]
		r, length, ok := t.record(rest)
		if length == 0 {
			at = at/isoSector*isoSector + isoSector
			continue
		}
		at += length
		if ok && slices.ContainsFunc(r.names, func(n string) bool { return strings.EqualFold(n, name) }) {
			return &r, nil
		}
	}
	return nil, nil
}
