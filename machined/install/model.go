package install

import (
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Config is the requested installation.
type Config struct {
	Disk config.DiskSelector
	Wipe string // path, serial number or WWID of the disk; its content may be lost
	// Unattended is true if the configuration came from a medium and not from an operator. A disk
	// with an installed system is then rejected even if the configuration names it; otherwise a
	// machine that boots its medium again would wipe itself each time.
	Unattended bool
}

// Facts are the properties of the machine.
type Facts struct {
	Disks []Disk // sorted by path
	// Matches is the result of the selector's expression for each disk, by path; nil without an
	// expression.
	Matches map[string]bool
	System  System
}

// System is the system to install.
type System struct {
	Version  string
	Root     verity.Params
	RootSize int64 // bytes
	UKISize  int64 // bytes
	Sizes    layout.Sizes
}

// Disk is a disk with the properties that a selector and the judgment of its content need.
type Disk struct {
	Path, Model, Serial, WWID, Bus, Transport string
	Size                                      uint64 // bytes
	SectorSize                                uint64 // bytes
	Rotational, ReadOnly                      bool
	// Medium is the reason why the disk is not a target: the system or its configuration was loaded
	// from it. Empty for all other disks.
	Medium     string
	Bootable   bool   // the firmware finds a boot loader on the disk
	Table      string // "gpt", "" for a blank disk, else a description of the content
	Partitions []Partition
}

// Partition is a partition with its content.
type Partition struct {
	Number  int
	Label   string
	Type    uuid.UUID
	UUID    uuid.UUID // unique GUID of the partition
	Size    uint64    // bytes
	Content string    // "ext4 photos", "blank"
}

// Want is the plan: the disk and the system to install.
type Want struct {
	Disk   Disk
	Others []string // the other disks, each with the reason against it
	System System
}

// String names a disk in terms that identify it for the operator: "/dev/vda (8 GiB, QEMU HARDDISK,
// serial disk0, virtio)".
func (d Disk) String() string {
	facts := []string{layout.FormatSize(d.Size)}
	for _, f := range []struct{ before, value string }{{"", d.Model}, {"serial ", d.Serial}, {"wwid ", d.WWID}, {"", d.Transport}, {"", d.Bus}} {
		if f.value != "" {
			facts = append(facts, f.before+f.value)
		}
	}
	return d.Path + " (" + strings.Join(facts, ", ") + ")"
}
