package parttable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// Offsets in a GPT header (UEFI 2.10, 5.3.2).
const (
	headerLength     = 12 // number of bytes that the checksum covers
	headerSum        = 16
	headerGUID       = 56 // of the disk
	headerEntries    = 72 // sector of the entries
	headerCount      = 80
	headerEach       = 84 // bytes of an entry
	headerEntriesSum = 88
	headerLeast      = 92 // the shortest header, in bytes
)

// setDiskGUID sets the GUID of the disk in a header, and updates the checksum of the header.
func setDiskGUID(header []byte, guid uuid.UUID) {
	copy(header[headerGUID:], mixedEndian(guid))
	clear(header[headerSum : headerSum+4])
	length := binary.LittleEndian.Uint32(header[headerLength:])
	binary.LittleEndian.PutUint32(header[headerSum:], crc32.ChecksumIEEE(header[:length]))
}

// mixedEndian returns a GUID in the byte order of GPT: the first three fields begin with their
// lowest byte (UEFI 2.10, appendix A). Applied twice, it returns the same GUID.
func mixedEndian(g uuid.UUID) []byte {
	return []byte{g[3], g[2], g[1], g[0], g[5], g[4], g[7], g[6], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]}
}

// DiskGUID returns the GUID of the disk. It reads the same table as Read: the primary table, or its
// backup at the end of the disk if the primary table is damaged. It returns uuid.Nil if both are
// damaged.
func DiskGUID(disk gpt.Device) uuid.UUID {
	sector := int64(disk.GetSectorSize())
	for _, at := range []int64{sector, int64(disk.GetSize())/sector*sector - sector} {
		header := make([]byte, sector)
		if _, err := disk.ReadAt(header, at); err == nil && wholeTable(disk, header) {
			return uuid.UUID(mixedEndian(uuid.UUID(header[headerGUID : headerGUID+16])))
		}
	}
	return uuid.Nil
}

// wholeTable reports whether the checksums of a header and of its entries are valid.
func wholeTable(disk gpt.Device, header []byte) bool {
	field := func(at int) uint32 { return binary.LittleEndian.Uint32(header[at:]) }
	length, sum := field(headerLength), field(headerSum)
	if string(header[:8]) != "EFI PART" || length < headerLeast || int64(length) > int64(len(header)) {
		return false
	}
	plain := bytes.Clone(header[:length])
	clear(plain[headerSum : headerSum+4])
	count, each := field(headerCount), field(headerEach)
	if crc32.ChecksumIEEE(plain) != sum || count > 1024 || each > 4096 {
		return false
	}
	entries := make([]byte, count*each)
	_, err := disk.ReadAt(entries, int64(binary.LittleEndian.Uint64(header[headerEntries:]))*int64(len(header)))
	return err == nil && crc32.ChecksumIEEE(entries) == field(headerEntriesSum)
}

// Shared reports whether the GUID of the disk or of a partition comes from the disk image. Other
// disks with this image then have the same GUID. It ignores the root partitions, because their
// GUIDs are derived from their content on every disk.
func Shared(disk uuid.UUID, partitions []*gpt.Partition) bool {
	if layout.IsImageGUID(disk) {
		return true
	}
	for _, p := range partitions {
		if p != nil && shared(p) {
			return true
		}
	}
	return false
}

func shared(p *gpt.Partition) bool {
	return p.Name != layout.RootA && p.Name != layout.RootB && layout.IsImageGUID(p.PartGUID)
}

// Identify replaces the GUIDs that a disk ("/dev/vda") shares with other disks (Shared) by new
// GUIDs. After a power cut the disk has either the old or the new GUIDs. Identify does not change
// other GUIDs.
func Identify(path string) error {
	device, plain, err := Open(path, block.OpenForWrite())
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", path, err)
	}
	defer device.Close()
	if err := identify(plain, uuid.NewRandom); err != nil {
		return fmt.Errorf("%s: cannot set new GUIDs: %w", path, err)
	}
	return nil
}

// identify implements Identify. fresh returns new GUIDs.
func identify(plain gpt.Device, fresh func() (uuid.UUID, error)) error {
	ordered := &orderedDevice{Device: plain}
	table, err := Read(ordered)
	if err != nil {
		return err
	}
	all, own := table.Partitions(), DiskGUID(plain)
	if !Shared(own, all) {
		return nil
	}
	if layout.IsImageGUID(own) {
		if ordered.guid, err = fresh(); err != nil {
			return err
		}
	}
	for _, p := range all {
		if p != nil && shared(p) {
			if p.PartGUID, err = fresh(); err != nil {
				return err
			}
		}
	}
	return table.Write()
}
