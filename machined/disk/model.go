package disk

import (
	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// Have is the actual state as the kernel reports it.
type Have struct {
	Disks  []Disk        // sorted by path
	Mounts []mount.Mount // all mounts, in order
}

// Disk is a whole disk. The JSON form has the fields of Hardware and of Table beside the other
// fields.
type Disk struct {
	Path string `json:"path"` // "/dev/vda"
	Hardware
	Table
	// Boot is true if the running root is on this disk.
	Boot bool `json:"boot"`
	// Root is the unique GUID of the partition with the running root; zero on other disks.
	Root uuid.UUID `json:"-"`
}

// Hardware has the properties that the device and the kernel report, but not the content.
type Hardware struct {
	Size       uint64 `json:"size"`             // bytes
	SectorSize uint64 `json:"sectorSize"`       // bytes
	Model      string `json:"model,omitempty"`  // as the disk reports it
	Serial     string `json:"serial,omitempty"` // as the disk reports it
	WWID       string `json:"wwid,omitempty"`   // world wide identifier
	// path of the controller in sysfs: "/pci0000:00/0000:00:03.0"
	Bus        string `json:"bus,omitempty"`
	Transport  string `json:"transport,omitempty"`
	Rotational bool   `json:"rotational"`
	ReadOnly   bool   `json:"readOnly"`
}

// Table is the partition table of a disk, with the partitions and the range for them.
type Table struct {
	// Kind is the kind of partition table: "gpt", "" for a blank disk, else a description of the
	// content.
	Kind string `json:"table"`
	// BackupAtEnd is true if the primary GPT is valid and its backup in the last sector mirrors it.
	// It is false after a disk image was written to a larger disk.
	BackupAtEnd bool `json:"-"`
	// Shared is true if the disk has the GUIDs of its disk image (parttable.Shared), which other
	// disks share.
	Shared bool   `json:"-"`
	First  uint64 `json:"-"` // first byte available to partitions
	// first byte behind the range for partitions, if the backup of the table is at the end of the
	// disk
	End uint64 `json:"-"`
	// alignment of partitions: the larger of 1 MiB and the preferred alignment of the disk
	Alignment  uint64      `json:"-"`
	Partitions []Partition `json:"partitions"`
}

// align rounds an offset up to the next permitted start of a partition.
func (t Table) align(offset uint64) uint64 {
	return (offset + t.Alignment - 1) / t.Alignment * t.Alignment
}

// Entry is an entry of the partition table.
type Entry struct {
	Number int       `json:"number"` // from 1
	Label  string    `json:"label"`
	Type   uuid.UUID `json:"type"`
	Start  uint64    `json:"start"` // bytes
	Size   uint64    `json:"size"`  // bytes
}

// end returns the offset of the first byte behind the partition.
func (e Entry) end() uint64 { return e.Start + e.Size }

// Partition is a partition with its content.
type Partition struct {
	Entry
	Path    string    `json:"path"` // "/dev/vda4"
	UUID    uuid.UUID `json:"uuid"` // unique GUID of the partition
	Content Content   `json:"content"`
	// Faults are the errors recorded by an Orlop ext4 on the boot disk.
	Faults superblock.Errors `json:"faults,omitzero"`
	// Loader is true if the partition contains a boot loader that firmware would start. It is
	// always false on the boot disk.
	Loader bool `json:"-"`
	// Encryption is nil if the partition is not an encrypted partition of Orlop OS.
	Encryption *Encryption `json:"encryption,omitempty"`
}

// Encryption is the state of an encrypted partition. While it is locked, the content of the
// partition is lockedKind; while it is open, the content is that of the mapped device.
type Encryption struct {
	Open bool `json:"open"` // the mapped device exists
	// New is true if the partition counts as blank: a power cut has interrupted the first format,
	// so the file system is not complete, or the keys are destroyed.
	New bool `json:"-"`
	// Destroyed is true if a reset has destroyed the keys, and has not wiped the header yet.
	Destroyed bool `json:"-"`
	// Recipients are the public keys to which the recovery key is encrypted, as the header says.
	Recipients []string `json:"recipients,omitempty"`
	// Fault is the reason why the machine does not use the header; empty if it does. The partition
	// then stays locked.
	Fault string `json:"fault,omitempty"`
}

// Content is the content of a partition, as far as its signature identifies it.
type Content struct {
	// "" if blank, "ext4", another file system's name, or "unknown data"
	Kind  string    `json:"kind"`
	Label string    `json:"label,omitempty"`
	UUID  uuid.UUID `json:"uuid"`
	Size  uint64    `json:"size,omitempty"` // of the file system, in bytes; 0 if unknown
}

// blank reports whether there is no content or an incomplete file system.
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

// Want is the plan with all choices made. It is made from the facts in a Have, and stays valid
// while the operations of Diff run.
type Want struct {
	Disk       string  // path of the disk
	Partitions []Entry // all partitions of the table, by number
	// NewTable is true if the disk gets a new table, because it is blank or its table is foreign.
	NewTable bool
	Volumes  []Volume // in mount order
}

// Volume is a partition of the plan, with its file system and its mount point.
type Volume struct {
	Number int         // of the partition
	Format Format      // format options
	Mount  mount.Mount // mount options
	// Dirs are the parent directories that several users share, relative to Mount.Target.
	Dirs []string
	// Links are symbolic links, by name relative to Mount.Target. Dirs contains their parent
	// directories.
	Links map[string]string
	// Wipe permits replacing a foreign file system in the partition.
	Wipe bool
	// Partition is the path of the partition. For an encrypted volume, the devices in Format and
	// Mount are the mapped device.
	Partition string
	// Encrypt is true if the volume is encrypted, or becomes encrypted when it is formatted.
	// Recipients get the recovery key of STATE when it is formatted. Those of DATA are in the
	// binding on STATE.
	Encrypt    bool
	Recipients []string
}
