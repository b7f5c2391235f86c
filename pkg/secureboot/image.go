package secureboot

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Image is a parsed PE image.
type Image struct {
	// Digest is the Authenticode digest with SHA-256. It does not cover the signatures.
	Digest [sha256.Size]byte
	// Signatures are the PKCS #7 signatures (DER).
	Signatures [][]byte
}

// Offsets and sizes in PE headers (Microsoft, "PE Format"), in bytes.
const (
	peHeaderPointer = 0x3c  // offset of the PE signature
	coffLen         = 20    // size of the COFF header
	coffSections    = 2     // in the COFF header: number of sections
	coffOptional    = 16    // in the COFF header: size of the optional header
	optHeaders      = 60    // in the optional header: size of all headers
	optChecksum     = 64    // in the optional header: checksum of the file
	optDirectories  = 108   // in the optional header of a 64-bit image: number of data directories
	optCertificates = 144   // in the optional header: directory entry of the signatures
	optLen          = 152   // in the optional header: end of this directory entry
	magic64         = 0x20b // first field of the optional header of a 64-bit image
	sectionLen      = 40    // size of a section header
	// maxHeaders and maxTable limit the memory. A real image has 4 KiB of headers, and signatures
	// of 2 KiB.
	maxHeaders = 64 << 10
	maxTable   = 64 << 10
	// typePKCS is WIN_CERT_TYPE_PKCS_SIGNED_DATA.
	typePKCS = 2
)

// headers has the parts of the headers that the computation of the digest needs.
type headers struct {
	raw          []byte // all headers
	optional     int    // offset of the optional header
	sections     []span // sorted by their offset in the file
	table        span   // table of signatures
	certificates int    // offset of the directory entry of the signatures
}

// span is a range of bytes in a file.
type span struct{ at, size int64 }

// ParseImage computes the digest of a 64-bit PE image with a size in bytes, and returns its
// signatures (Microsoft, "Windows Authenticode Portable Executable Signature Format"). It reads
// each byte at most twice.
func ParseImage(from io.ReaderAt, size int64) (Image, error) {
	h, err := readHeaders(from, size)
	if err != nil {
		return Image{}, fmt.Errorf("boot image: %w", err)
	}
	sum := sha256.New()
	sum.Write(h.raw[:h.optional+optChecksum])
	sum.Write(h.raw[h.optional+optChecksum+4 : h.certificates])
	sum.Write(h.raw[h.certificates+8:])
	parts, hashed := h.sections, int64(len(h.raw))
	for _, s := range parts {
		hashed += s.size
	}
	// The data after the sections is hashed, too, except for the signatures.
	end := size - h.table.size
	if hashed > end || h.table.size > 0 && h.table.at != end {
		return Image{}, errors.New("boot image: its sections overlap, or its signatures are not at its end")
	}
	for _, s := range append(parts, span{hashed, end - hashed}) {
		if _, err := io.Copy(sum, io.NewSectionReader(from, s.at, s.size)); err != nil {
			return Image{}, fmt.Errorf("boot image: cannot read: %w", err)
		}
	}
	out := Image{Digest: [sha256.Size]byte(sum.Sum(nil))}
	table := make([]byte, h.table.size)
	if _, err := io.ReadFull(io.NewSectionReader(from, h.table.at, h.table.size), table); err != nil {
		return Image{}, fmt.Errorf("boot image: cannot read its signatures: %w", err)
	}
	if out.Signatures, err = splitTable(table); err != nil {
		return Image{}, fmt.Errorf("boot image: %w", err)
	}
	return out, nil
}

// readHeaders reads and checks the headers of an image with a size in bytes.
func readHeaders(from io.ReaderAt, size int64) (h headers, err error) {
	h.raw = make([]byte, min(size, maxHeaders))
	if _, err := io.ReadFull(io.NewSectionReader(from, 0, int64(len(h.raw))), h.raw); err != nil {
		return h, fmt.Errorf("cannot read: %w", err)
	}
	errNoPE := errors.New("it is not a 64-bit PE image")
	if len(h.raw) < peHeaderPointer+4 || string(h.raw[:2]) != "MZ" {
		return h, errNoPE
	}
	at := int64(binary.LittleEndian.Uint32(h.raw[peHeaderPointer:]))
	if at+4+coffLen+optLen > int64(len(h.raw)) || string(h.raw[at:at+4]) != "PE\x00\x00" {
		return h, errNoPE
	}
	coff := int(at) + 4
	h.optional = coff + coffLen
	h.certificates = h.optional + optCertificates
	count := int(binary.LittleEndian.Uint16(h.raw[coff+coffSections:]))
	list := h.optional + int(binary.LittleEndian.Uint16(h.raw[coff+coffOptional:]))
	end := int64(binary.LittleEndian.Uint32(h.raw[h.optional+optHeaders:]))
	switch {
	case binary.LittleEndian.Uint16(h.raw[h.optional:]) != magic64 || binary.LittleEndian.Uint32(h.raw[h.optional+optDirectories:]) < 5:
		return h, errNoPE
	case int64(list+count*sectionLen) > end || list < h.optional+optLen || end > int64(len(h.raw)):
		return h, fmt.Errorf("its headers of %d bytes do not hold its %d sections", end, count)
	}
	h.raw = h.raw[:end]
	for section := h.raw[list:][:count*sectionLen]; len(section) > 0; section = section[sectionLen:] {
		s := span{int64(binary.LittleEndian.Uint32(section[20:])), int64(binary.LittleEndian.Uint32(section[16:]))}
		if s.size == 0 {
			continue
		}
		if s.at < end || s.at+s.size > size {
			return h, errors.New("a section is outside the file")
		}
		h.sections = append(h.sections, s)
	}
	slices.SortStableFunc(h.sections, func(a, b span) int { return cmp.Compare(a.at, b.at) })
	h.table = span{int64(binary.LittleEndian.Uint32(h.raw[h.certificates:])), int64(binary.LittleEndian.Uint32(h.raw[h.certificates+4:]))}
	if h.table.size > maxTable || h.table.at+h.table.size > size {
		return h, fmt.Errorf("its signatures have %d bytes, and at most %d are allowed within the file", h.table.size, maxTable)
	}
	return h, nil
}

// splitTable returns the PKCS #7 signatures in a table of signatures. It skips signatures of other
// types.
func splitTable(table []byte) (all [][]byte, err error) {
	const header = 8 // length, revision, type
	for rest := table; len(rest) > 0; {
		if len(rest) < header {
			return nil, errors.New("its table of signatures is truncated")
		}
		length := int64(binary.LittleEndian.Uint32(rest))
		if length < header || length > int64(len(rest)) {
			return nil, fmt.Errorf("a signature of %d bytes is impossible", length)
		}
		if binary.LittleEndian.Uint16(rest[6:]) == typePKCS {
			all = append(all, rest[header:length])
		}
		rest = rest[min((length+7)&^7, int64(len(rest))):]
	}
	return all, nil
}
