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

	"github.com/orlop-os/orlop/pkg/esp"
	"github.com/orlop-os/orlop/pkg/parttable"
	"github.com/orlop-os/orlop/pkg/superblock"
)

// mostOpen is how many partitions of a disk are opened. Others are read through the disk.
const mostOpen = 64

// place is a disk or a partition. Partitions are read through their own device: the disk's has a
// cache of its own, which may be older.
type place struct {
	r    io.ReaderAt
	file *os.File // nil where a partition is read through its disk
	size uint64
}

// open finds out how large a device is. A plain file serves as a disk, too.
func open(f *os.File) (place, error) {
	info, err := f.Stat()
	if err != nil {
		return place{}, err
	}
	if info.Mode().IsRegular() {
		return place{f, f, uint64(info.Size())}, nil
	}
	size, err := block.NewFromFile(f).GetSize()
	return place{f, f, size}, err
}

// table is what parttable reads.
func (p place) table() (gpt.Device, error) {
	if info, err := p.file.Stat(); err != nil {
		return nil, err
	} else if info.Mode().IsRegular() {
		return gpt.DeviceFromFile(p.file)
	}
	return gpt.DeviceFromBlockDevice(block.NewFromFile(p.file))
}

// Examine answers the question from open files. It is what the process does; tests that write the
// disk themselves call it as it is.
func Examine(q Request, disk *os.File, partitions []*os.File) Result {
	a, err := examine(q, disk, partitions)
	if errors.Is(err, unix.ENOMEDIUM) {
		return Result{Disk: q.Disk}
	}
	if err != nil {
		return Result{Disk: q.Disk, Size: a.Size, Table: superblock.UnknownData, Problem: tidy(err.Error(), mostProblem)}
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
	places := map[int]place{0: whole}
	for _, e := range a.Entries {
		places[e.Number] = place{r: io.NewSectionReader(disk, int64(e.Start), int64(e.Size)), size: e.Size}
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

// readTable reads the partition table, and what else lies on the disk as a whole.
func (a *Result) readTable(disk place) error {
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
	// The disk may be something else, too: a CD image that also boots from a stick, or a member of
	// a RAID whose array has the table.
	if c, err := superblock.Identify(disk.r, disk.size); err == nil && c.Kind != superblock.BackupGPT {
		a.Whole = superblock.Content{Kind: c.Kind, Label: tidy(c.Label, mostLabel)}
	}
	a.Table, a.Mirrored = "gpt", parttable.Mirrored(device)
	sector := uint64(device.GetSectorSize())
	for i, p := range table.Partitions() {
		if p != nil {
			a.Entries = append(a.Entries, Entry{Number: i + 1, Label: tidy(p.Name, mostLabel), Type: p.TypeGUID, UUID: p.PartGUID,
				Start: p.FirstLBA * sector, Size: (p.LastLBA - p.FirstLBA + 1) * sector})
		}
	}
	return nil
}

// otherTable says what a disk without a GPT holds; "" if it is blank.
func (a *Result) otherTable(disk place) error {
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
		a.Table = tidy("a whole-disk "+a.Whole.Kind, mostKind)
	}
	return nil
}

// content is what a place holds: by what we know, and by what the library knows beyond that.
func content(p place) (superblock.Content, error) {
	c, err := superblock.Examine(p.r, p.size)
	if err != nil {
		return c, err
	}
	c.Label = tidy(c.Label, mostLabel)
	if p.file == nil || slices.Contains([]string{"ext2", "ext3", "ext4", "vfat", "iso9660", "erofs"}, c.Kind) {
		return c, nil
	}
	info, err := blkid.Probe(p.file, blkid.WithSkipLocking(true))
	if err != nil || info.Name == "" || info.Name == "gpt" {
		return c, nil // what we know stays true
	}
	c = superblock.Content{Kind: tidy(info.Name, mostKind), Size: info.ProbedSize}
	if info.Label != nil {
		c.Label = tidy(*info.Label, mostLabel)
	}
	if info.UUID != nil {
		c.UUID = *info.UUID
	}
	return c, nil
}

// readContents examines the partitions. One that cannot be read is not blank, and does not keep the
// others from being read.
func (a Result) readContents(places map[int]place) (Result, error) {
	for number, p := range places {
		if number == 0 {
			continue
		}
		h := PartitionContent{Number: number}
		var err error
		if h.Content, err = content(p); err != nil {
			h.Content = superblock.Content{Kind: tidy("what cannot be read: "+err.Error(), mostKind)}
		}
		if h.Content.Kind == "vfat" {
			there, err := superblock.FATHas(p.r, p.size, esp.Loader)
			// of a damaged file system no firmware starts: mkfs.fat may have been cut short
			h.Loader = there && err == nil
		}
		a.Contents = append(a.Contents, h)
	}
	slices.SortFunc(a.Contents, func(x, y PartitionContent) int { return x.Number - y.Number })
	if a.Table == "" && len(a.Contents) > 0 {
		a.Table = superblock.UnknownData // the kernel shows partitions that we do not see
	}
	return a, nil
}

// readFile reads one file.
func (a Result) readFile(f File, places map[int]place) (Result, error) {
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
		err = fmt.Errorf("no files are read from a %s", f.Kind)
	}
	if errors.Is(err, fs.ErrNotExist) {
		a.Missing = true
		return a, nil
	}
	return a, err
}
