package disk

import (
	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/superblock"
)

// Have is what the kernel shows: the facts.
type Have struct {
	Disks  []Disk        // sorted by path
	Mounts []mount.Mount // everything mounted, in order
}

// Disk is one whole disk.
type Disk struct {
	Path       string `json:"path"`             // "/dev/vda"
	Size       uint64 `json:"size"`             // bytes
	SectorSize uint64 `json:"sectorSize"`       // bytes
	Model      string `json:"model,omitempty"`  // as the disk says
	Serial     string `json:"serial,omitempty"` // as the disk says
	WWID       string `json:"wwid,omitempty"`   // world wide identifier
	// path of the controller in sysfs: "/pci0000:00/0000:00:03.0"
	Bus        string `json:"bus,omitempty"`
	Transport  string `json:"transport,omitempty"`
	Rotational bool   `json:"rotational"`
	ReadOnly   bool   `json:"readOnly"`
	// Boot says that the running root lies on this disk.
	Boot bool `json:"boot"`
	// Root is the unique GUID of the partition that the running root lies on; zero on other disks.
	Root uuid.UUID `json:"-"`
	// Table is the kind of partition table: "gpt", "" for a blank disk, otherwise what is there
	// instead.
	Table string `json:"table"`
	// BackupAtEnd says that the primary GPT is whole, and that its backup stands in the last sector
	// and mirrors it. It does not after a disk image was written to a larger disk.
	BackupAtEnd bool `json:"-"`
	// Shared says that the disk has GUIDs which come from its disk image (parttable.Shared): other
	// disks have the same.
	Shared bool   `json:"-"`
	First  uint64 `json:"-"` // first byte that a partition may use
	// first byte behind the space for partitions, when the backup is at the end
	End uint64 `json:"-"`
	// of partitions: the larger of 1 MiB and what the disk prefers
	Alignment  uint64      `json:"-"`
	Partitions []Partition `json:"partitions"`
}

// align rounds an offset up to where a partition may start.
func (d Disk) align(offset uint64) uint64 {
	return (offset + d.Alignment - 1) / d.Alignment * d.Alignment
}

// Entry is one line of the partition table.
type Entry struct {
	Number int       `json:"number"` // from 1
	Label  string    `json:"label"`
	Type   uuid.UUID `json:"type"`
	Start  uint64    `json:"start"` // bytes
	Size   uint64    `json:"size"`  // bytes
}

// end is the first byte behind the partition.
func (e Entry) end() uint64 { return e.Start + e.Size }

// Partition is one partition with what it holds.
type Partition struct {
	Entry
	Path    string    `json:"path"` // "/dev/vda4"
	UUID    uuid.UUID `json:"uuid"` // the partition's unique GUID
	Content Content   `json:"content"`
	// Errors are the errors that an ext4 of ours has recorded, on the disk that was booted from.
	Faults superblock.Errors `json:"faults,omitzero"`
	// it holds a boot loader that firmware would start; not looked for on the disk that was booted
	// from
	Loader bool `json:"-"`
}

// Content is what a partition holds, as far as it is known by its signature.
type Content struct {
	// "" when blank, "ext4", another file system's name, or "unknown data"
	Kind  string    `json:"kind"`
	Label string    `json:"label,omitempty"`
	UUID  uuid.UUID `json:"uuid"`
	Size  uint64    `json:"size,omitempty"` // of the file system, in bytes; 0 when not known
}

// blank says that nothing is there, or a file system that was not finished.
func (c Content) blank() bool { return c.Kind == "" }

// String is "blank" or "ext4 DATA".
func (c Content) String() string {
	if c.blank() {
		return "blank"
	}
	if c.Label != "" {
		return c.Kind + " " + c.Label
	}
	return c.Kind
}

// Want is the plan: all choices are made. It belongs to the facts it was made from, but stays true
// while the operations of Diff are done one by one.
type Want struct {
	Disk       string  // path of the disk
	Partitions []Entry // every partition of the table, by number
	// NewTable says that a table that is not GPT, or not ours, may be replaced by a new one.
	NewTable bool
	Volumes  []Volume // in the order in which they are mounted
}

// Volume is one partition with our file system, mounted.
type Volume struct {
	Number int         // of the partition
	Format Format      // how it is made
	Mount  mount.Mount // where it goes
	// Dirs are those that folders of several users lie in, relative to Mount.Target.
	Dirs []string
	// Links are symbolic links, by name relative to Mount.Target. The folders above them are
	// Folders.
	Links map[string]string
	// Wipe says that a foreign file system in the partition may be replaced.
	Wipe bool
}
