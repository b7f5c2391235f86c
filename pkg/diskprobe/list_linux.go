package diskprobe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Sys is the directory in which the kernel lists disks.
const Sys = "/sys/block"

// Device is a whole disk, or a drive for removable media, in the kernel's list.
type Device struct {
	Name       string // "sdb"
	Path       string // "/dev/sdb"
	Size       uint64 // bytes; 0 for a drive without a medium
	SectorSize uint64 // bytes
	ReadOnly   bool
	Removable  bool        // the medium can change without the kernel noticing
	Optical    bool        // a CD drive, which has a size even without a medium
	Partitions []Partition // by number
	// Identity changes with the disk, its medium, its size and its partitions.
	Identity string
	// Written changes with each write and discard of this machine.
	Written string
}

// Partition is a partition in the kernel's list.
type Partition struct {
	Number int
	Path   string
}

// List returns the disks and drives in sysfs, in the order of their names. It does not open their
// devices, so it never waits for a disk. It omits virtual devices (device mapper, loop, RAM disks).
func List(sys string) ([]Device, error) {
	entries, err := os.ReadDir(sys)
	if err != nil {
		return nil, fmt.Errorf("disks: cannot list: %w", err)
	}
	var all []Device
	for _, e := range entries {
		if slices.ContainsFunc([]string{"loop", "ram", "zram", "dm-"}, func(made string) bool { return strings.HasPrefix(e.Name(), made) }) {
			continue
		}
		d, err := readDevice(filepath.Join(sys, e.Name()), e.Name())
		if err != nil {
			continue // removed since the listing
		}
		if d.Size > 0 || d.Removable { // others are controllers without a connected device
			all = append(all, d)
		}
	}
	return all, nil
}

// readDevice reads the directory of a disk in sysfs (Documentation/ABI/stable/sysfs-block).
func readDevice(dir, name string) (Device, error) {
	word := func(file string) string {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	number := func(file string) uint64 {
		n, _ := strconv.ParseUint(word(file), 10, 64) // 0 for a missing file
		return n
	}
	d := Device{Name: name, Path: "/dev/" + name, Size: number("size") * 512, SectorSize: number("queue/logical_block_size"),
		ReadOnly: word("ro") == "1", Removable: word("removable") == "1"}
	d.Optical = word("device/type") == "5" // scsi/scsi_proto.h, TYPE_ROM
	if d.SectorSize == 0 {
		d.SectorSize = 512
	}
	below, err := os.ReadDir(dir)
	if err != nil {
		return Device{}, err
	}
	parts := []string{word("diskseq"), word("size"), word("ro")}
	for _, e := range below {
		n, err := strconv.Atoi(word(filepath.Join(e.Name(), "partition")))
		if err != nil || n < 1 {
			continue
		}
		d.Partitions = append(d.Partitions, Partition{Number: n, Path: "/dev/" + e.Name()})
		parts = append(parts, fmt.Sprintf("%d:%s+%s", n, word(filepath.Join(e.Name(), "start")), word(filepath.Join(e.Name(), "size"))))
	}
	slices.SortFunc(d.Partitions, func(a, b Partition) int { return a.Number - b.Number })
	d.Identity = strings.Join(parts, " ")
	// The numbers and sectors of writes, and of discards (Documentation/block/stat.rst).
	if stat := strings.Fields(word("stat")); len(stat) > 13 {
		d.Written = strings.Join([]string{stat[4], stat[6], stat[11], stat[13]}, " ")
	}
	return d, nil
}
