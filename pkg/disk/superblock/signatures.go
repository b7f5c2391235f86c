package superblock

import (
	"encoding/binary"
	"io"
)

// mark is a signature at a fixed offset.
type mark struct {
	name  string
	at    int64 // offset in bytes
	magic string
}

// headSignatures are signatures with their offsets from the beginning of an area, from libblkid
// (util-linux). The first match determines the kind of content. Examine also detects content
// without a known signature, because such content is not zero.
var headSignatures = []mark{
	{"LUKS", 0, "LUKS\xba\xbe"},
	{"LUKS", 0x4000, "SKUL\xba\xbe"},
	{"LUKS", 0x8000, "SKUL\xba\xbe"},
	{"LUKS", 0x10000, "SKUL\xba\xbe"},
	{"LUKS", 0x20000, "SKUL\xba\xbe"},
	{"LUKS", 0x40000, "SKUL\xba\xbe"},
	{"LUKS", 0x80000, "SKUL\xba\xbe"},
	{"LUKS", 0x100000, "SKUL\xba\xbe"},
	{"LUKS", 0x200000, "SKUL\xba\xbe"},
	{"LUKS", 0x400000, "SKUL\xba\xbe"},
	{"BitLocker", 3, "-FVE-FS-"},
	{"lvm2", 0, "LABELONE"},
	{"lvm2", 512, "LABELONE"},
	{"lvm2", 1024, "LABELONE"},
	{"lvm2", 1536, "LABELONE"},
	{"Linux RAID member", 0, mdMagic},
	{"Linux RAID member", 4096, mdMagic},
	{"bcache", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"bcachefs", 4096 + 24, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
	{"Stratis", 512 + 4, "!Stra0tis\x86\xff\x02^\x41rh"},
	{"VDO", 0, "dmvdo001"},
	{"bluestore", 0, "bluestore block device"},
	{"VMFS volume", 1 << 20, "\x0d\xd0\x01\xc0"},
	{"VMFS", 2 << 20, "\x5e\xf1\xab\x2f"},
	{"btrfs", 0x10040, "_BHRfS_M"},
	{"btrfs", 64<<20 + 0x40, "_BHRfS_M"},
	{"xfs", 0, "XFSB"},
	{"ntfs", 3, "NTFS    "},
	{"exfat", 3, "EXFAT   "},
	{"f2fs", 1024, "\x10\x20\xf5\xf2"},
	{"ReiserFS", 64<<10 + 52, "ReIsEr"},
	{"jfs", 32 << 10, "JFS1"},
	{"gfs2", 64 << 10, "\x01\x16\x19\x70"},
	{"ocfs2", 2048, "OCFSV2"},
	{"ocfs2", 4096, "OCFSV2"},
	{"apfs", 32, "NXSB"},
	{"hfsplus", 1024, "H+"},
	{"squashfs", 0, "hsqs"},
	{swapKind, 4096 - 10, "SWAPSPACE2"},
	{swapKind, 65536 - 10, "SWAPSPACE2"},
	{"udf", 32<<10 + 1, "BEA01"},
}

// mdMagic is the signature of Linux RAID metadata (include/uapi/linux/raid/md_p.h).
const mdMagic = "\xfc\x4e\x2b\xa9"

// BackupGPT is the kind of a disk that has only a backup of a partition table, at its end.
const BackupGPT = "backup of a GPT partition table"

// tail is a signature at an offset that depends on the size of the area in bytes.
type tail struct {
	name  string
	place func(size uint64) uint64
	magic string
}

const sector = 512

// beforeEnd returns a function from the size of an area to the offset that lies the given number of
// bytes before the end of the last whole sector.
func beforeEnd(bytes uint64) func(uint64) uint64 {
	return func(size uint64) uint64 { return size/sector*sector - bytes }
}

// tailSignatures are signatures with their offsets from the end of an area, from libblkid and the
// kernel.
var tailSignatures = []tail{
	// metadata version 0.90
	{"Linux RAID member", func(size uint64) uint64 { return size&^0xffff - 0x10000 }, mdMagic},
	// metadata version 0.90 of a big-endian machine
	{"Linux RAID member", func(size uint64) uint64 { return size&^0xffff - 0x10000 }, "\xa9\x2b\x4e\xfc"},
	// metadata version 1.0
	{"Linux RAID member", func(size uint64) uint64 { return (size/sector - 16) &^ 7 * sector }, mdMagic},
	// for 512-byte sectors
	{"Intel RAID member", beforeEnd(2 * sector), "Intel Raid ISM Cfg Sig. "},
	// for 4096-byte sectors
	{"Intel RAID member", beforeEnd(2 * 4096), "Intel Raid ISM Cfg Sig. "},
	// SNIA, also HP and Dell
	{"DDF RAID member", beforeEnd(sector), "\xde\x11\xde\x11"},
	{"DDF RAID member", beforeEnd(sector), "\x11\xde\x11\xde"},
	{"DDF RAID member", beforeEnd(257 * sector), "\xde\x11\xde\x11"},
	{"LSI RAID member", beforeEnd(sector), "$XIDE$"},
	{"Adaptec RAID member", beforeEnd(sector), "DPTM"},
	{"NVIDIA RAID member", beforeEnd(2 * sector), "NVIDIA"},
	{"JMicron RAID member", beforeEnd(sector), "JM"},
	{"Promise RAID member", beforeEnd(63 * sector), "Promise Technology, Inc."},
	// versions 8 and 9
	{"DRBD", func(size uint64) uint64 { return size&^0xfff - 4096 + 60 }, "\x83\x74\x02\x6b"},
	{"DRBD", func(size uint64) uint64 { return size&^0xfff - 4096 + 60 }, "\x83\x74\x02\x6d"},
	{"nilfs2", func(size uint64) uint64 { return size&^0xfff - 4096 + 6 }, "\x34\x34"},
	{BackupGPT, beforeEnd(sector), "EFI PART"},
}

// signature returns the name of the first matching signature, or "".
func signature(r io.ReaderAt, size uint64) (string, error) {
	has := func(at uint64, magic string) (bool, error) {
		if at+uint64(len(magic)) > size || at > size {
			return false, nil
		}
		b := make([]byte, len(magic))
		if err := read(r, b, at); endsBefore(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		return string(b) == magic, nil
	}
	for _, m := range headSignatures {
		if found, err := has(uint64(m.at), m.magic); err != nil || found {
			return m.name, err
		}
	}
	if size < 1<<20 { // the other offsets would be negative
		return "", nil
	}
	for _, t := range tailSignatures {
		if found, err := has(t.place(size), t.magic); err != nil || found {
			return t.name, err
		}
	}
	return magicOfZFS(r, size)
}

// magicOfZFS looks for a ZFS label (module/zfs/vdev_label.c). The uberblocks of a label begin at
// 128 KiB and are 1 KiB apart; the first uberblocks may be empty.
func magicOfZFS(r io.ReaderAt, size uint64) (string, error) {
	if size < 1<<20 {
		return "", nil
	}
	for _, label := range []uint64{0, 256 << 10, size&^(256<<10-1) - 512<<10, size&^(256<<10-1) - 256<<10} {
		ring := make([]byte, 128<<10)
		if err := read(r, ring, label+128<<10); endsBefore(err) {
			continue
		} else if err != nil {
			return "", err
		}
		for at := 0; at < len(ring); at += 1 << 10 {
			if binary.LittleEndian.Uint64(ring[at:]) == 0x00bab10c || binary.BigEndian.Uint64(ring[at:]) == 0x00bab10c {
				return "zfs", nil
			}
		}
	}
	return "", nil
}
