package diskprobe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/siderolabs/go-blockdevice/v2/blkid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// maxOpen is the maximum number of partitions of a disk that are opened. The others are read
// through the device of the disk.
const maxOpen = 64

// volume is a disk or a partition. If possible, a partition is read through its own device, because
// the separate page cache of the disk's device can have older data.
type volume struct {
	r    io.ReaderAt
	file *os.File // nil if a partition is read through its disk
	size uint64
}

// open returns the volume of an open device or, in tests, of a regular file.
func open(f *os.File) (volume, error) {
	info, err := f.Stat()
	if err != nil {
		return volume{}, err
	}
	if info.Mode().IsRegular() {
		return volume{f, f, uint64(info.Size())}, nil
	}
	size, err := block.NewFromFile(f).GetSize()
	return volume{f, f, size}, err
}

// table returns the volume as the type that package parttable reads.
func (p volume) table() (gpt.Device, error) {
	if info, err := p.file.Stat(); err != nil {
		return nil, err
	} else if info.Mode().IsRegular() {
		return gpt.DeviceFromFile(p.file)
	}
	return gpt.DeviceFromBlockDevice(block.NewFromFile(p.file))
}

// Examine executes a request with open files. The examining process calls it. Tests call it
// directly for disks that they have written.
func Examine(q Request, disk *os.File, partitions []*os.File) Result {
	a, err := examine(q, disk, partitions)
	if errors.Is(err, unix.ENOMEDIUM) {
		return Result{Disk: q.Disk}
	}
	if err != nil {
		return Result{Disk: q.Disk, Size: a.Size, Table: superblock.UnknownData, Problem: shorten(err.Error(), maxProblem)}
	}
	return a
}

func examine(q Request, disk *os.File, partitions []*os.File) (Result, error) {
	a := Result{Disk: q.Disk}
	whole, err := open(disk)
	if err != nil {
		return a, err
	}
	a.Size = whole.size
	if whole.size == 0 {
		return a, nil
	}
	if err := a.readTable(whole); err != nil {
		return a, err
	}
	places := map[int]volume{0: whole}
	for _, e := range a.Entries {
		places[e.Number] = volume{r: io.NewSectionReader(disk, int64(e.Start), int64(e.Size)), size: e.Size}
	}
	for i, number := range q.Partitions {
		if p, err := open(partitions[i]); err == nil && p.size > 0 {
			places[number] = p
		}
	}
	if q.File != nil {
		return a.readFile(*q.File, places)
	}
	return a.readContents(places)
}

// readTable reads the partition table. It also identifies other content of the whole disk: a disk
// can have such content in addition to a table, or without a table.
func (a *Result) readTable(disk volume) error {
	device, err := disk.table()
	if err != nil {
		return err
	}
	table, err := parttable.Read(device)
	if err != nil {
		if a.Whole, err = content(disk); err != nil {
			return err
		}
		return a.otherTable(disk)
	}
	// A disk with a GPT can have other content, too: a CD image that also boots from a memory
	// stick, or a member of a RAID array with the table.
	if c, err := superblock.Identify(disk.r, disk.size); err == nil && c.Kind != superblock.BackupGPT {
		a.Whole = superblock.Content{Kind: c.Kind, Label: shorten(c.Label, maxLabel)}
	}
	a.Table, a.Mirrored = "gpt", parttable.Mirrored(device)
	sector := uint64(device.GetSectorSize())
	for i, p := range table.Partitions() {
		if p != nil {
			a.Entries = append(a.Entries, Entry{Number: i + 1, Label: shorten(p.Name, maxLabel), Type: p.TypeGUID, UUID: p.PartGUID,
				Start: p.FirstLBA * sector, Size: (p.LastLBA - p.FirstLBA + 1) * sector})
		}
	}
	return nil
}

// otherTable sets Table for a disk without a GPT: a description of its content, or "" if the disk
// is blank.
func (a *Result) otherTable(disk volume) error {
	boot := make([]byte, 512)
	if _, err := disk.r.ReadAt(boot, 0); err != nil {
		return err
	}
	switch mbr := boot[510] == 0x55 && boot[511] == 0xaa; {
	case a.Whole.Kind == "":
		a.Table = ""
	case a.Whole.Kind == superblock.UnknownData && mbr:
		a.Table, a.Whole = "an MBR partition table", superblock.Content{}
	case a.Whole.Kind == superblock.UnknownData:
		a.Table, a.Whole = superblock.UnknownData, superblock.Content{}
	default:
		a.Table = shorten("a whole-disk "+a.Whole.Kind, maxKind)
	}
	return nil
}

// content returns the content of a volume. Package superblock identifies the most important kinds.
// For other kinds, the library go-blockdevice can have a more exact result.
func content(p volume) (superblock.Content, error) {
	c, err := superblock.Examine(p.r, p.size)
	if err != nil {
		return c, err
	}
	c.Label = shorten(c.Label, maxLabel)
	if p.file == nil || slices.Contains([]string{"ext2", "ext3", "ext4", "vfat", "iso9660", "erofs"}, c.Kind) {
		return c, nil
	}
	info, err := blkid.Probe(p.file, blkid.WithSkipLocking(true))
	if err != nil || info.Name == "" || info.Name == "gpt" {
		return c, nil // the result of package superblock stays valid
	}
	c = superblock.Content{Kind: shorten(info.Name, maxKind), Size: info.ProbedSize}
	if info.Label != nil {
		c.Label = shorten(*info.Label, maxLabel)
	}
	if info.UUID != nil {
		c.UUID = *info.UUID
	}
	return c, nil
}

// readContents examines the partitions. If a partition cannot be read, its kind states this, and
// the examination continues with the others.
func (a Result) readContents(places map[int]volume) (Result, error) {
	for number, p := range places {
		if number == 0 {
			continue
		}
		h := PartitionContent{Number: number}
		var err error
		if h.Content, err = content(p); err != nil {
			h.Content = superblock.Content{Kind: shorten("what cannot be read: "+err.Error(), maxKind)}
		}
		if h.Content.Kind == "vfat" {
			there, err := superblock.FATHas(p.r, p.size, esp.Loader)
			// An error means that there is no loader: firmware cannot boot from a damaged file
			// system, for example after an interrupted mkfs.fat.
			h.Loader = there && err == nil
		}
		a.Contents = append(a.Contents, h)
	}
	slices.SortFunc(a.Contents, func(x, y PartitionContent) int { return x.Number - y.Number })
	if a.Table == "" && len(a.Contents) > 0 {
		a.Table = superblock.UnknownData // the kernel has partitions that parttable does not find
	}
	return a, nil
}

// readFile reads the requested file.
func (a Result) readFile(f File, places map[int]volume) (Result, error) {
	p, there := places[f.Partition]
	if !there {
		return a, fmt.Errorf("partition %d is gone", f.Partition)
	}
	var err error
	switch f.Kind {
	case "vfat":
		a.Text, err = superblock.FATFile(p.r, p.size, f.Name, f.MaxSize)
	case "iso9660":
		a.Text, err = superblock.ISOFile(p.r, p.size, f.Name, f.MaxSize)
	default:
		err = fmt.Errorf("files of a %s are not supported", f.Kind)
	}
	if errors.Is(err, fs.ErrNotExist) {
		a.Missing = true
		return a, nil
	}
	return a, err
}
