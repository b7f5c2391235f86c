package parttable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

// header is the relevant part of a GPT header (UEFI specification, 5.3.2).
type header struct {
	alternate  uint64 // sector of the other header
	entriesCRC uint32
	guid       [16]byte
}

var errNoHeader = errors.New("no valid GPT header")

// readHeader reads a header and verifies its checksum and the checksum of its entries.
func readHeader(disk gpt.Device, lba uint64) (header, error) {
	sector := int64(disk.GetSectorSize())
	b := make([]byte, sector)
	if _, err := disk.ReadAt(b, int64(lba)*sector); err != nil {
		return header{}, err
	}
	length := binary.LittleEndian.Uint32(b[12:])
	if !bytes.Equal(b[:8], []byte("EFI PART")) || length < 92 || int64(length) > sector || binary.LittleEndian.Uint64(b[24:]) != lba {
		return header{}, errNoHeader
	}
	sum := binary.LittleEndian.Uint32(b[16:])
	copy(b[16:20], []byte{0, 0, 0, 0})
	if crc32.ChecksumIEEE(b[:length]) != sum {
		return header{}, errNoHeader
	}
	h := header{alternate: binary.LittleEndian.Uint64(b[32:]), entriesCRC: binary.LittleEndian.Uint32(b[88:]), guid: [16]byte(b[56:72])}
	count, each := binary.LittleEndian.Uint32(b[80:]), binary.LittleEndian.Uint32(b[84:])
	if count > 1024 || each > 4096 {
		return header{}, errNoHeader
	}
	entries := make([]byte, count*each)
	if _, err := disk.ReadAt(entries, int64(binary.LittleEndian.Uint64(b[72:]))*sector); err != nil {
		return header{}, err
	}
	if crc32.ChecksumIEEE(entries) != h.entriesCRC {
		return header{}, errNoHeader
	}
	return h, nil
}

// Mirrored reports whether the primary table is valid and the last sector of the disk holds a valid
// backup of it.
func Mirrored(disk gpt.Device) bool {
	last := disk.GetSize()/uint64(disk.GetSectorSize()) - 1
	primary, err := readHeader(disk, 1)
	if err != nil || primary.alternate != last {
		return false
	}
	backup, err := readHeader(disk, last)
	return err == nil && backup.alternate == 1 && backup.entriesCRC == primary.entriesCRC && backup.guid == primary.guid
}
