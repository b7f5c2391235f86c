package install

import (
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Config is what is asked for.
type Config struct {
	Disk config.DiskSelector
	Wipe string // path, serial number or WWID of the disk whose content may be lost
	// Unattended says that nobody asked just now: the configuration lay on a medium. A disk with an
	// installed system is refused then even if it is named, or a machine that starts from its
	// medium again would wipe itself each time.
	Unattended bool
}

// Facts are what the machine knows.
type Facts struct {
	Disks []Disk // sorted by path
	// Matches says of each disk, by path, what the expression of the selector says; nil without
	// one.
	Matches map[string]bool
	System  System
}

// System is what there is to install.
type System struct {
	Version  string
	Root     verity.Params
	RootSize int64 // bytes
	UKISize  int64 // bytes
	Sizes    disklayout.Sizes
}

// Disk is one disk, as far as it matters for choosing and judging it.
type Disk struct {
	Path, Model, Serial, WWID, Bus, Transport string
	Size                                      uint64 // bytes
	SectorSize                                uint64 // bytes
	ReadOnly                                  bool
	// Medium says why the disk is not for installing to: the system or its configuration came on
	// it. Empty for all others.
	Medium     string
	Bootable   bool   // the firmware finds a boot loader there
	Table      string // "gpt", "" for a blank disk, otherwise what is there instead
	Partitions []Partition
}

// Partition is one partition with what it holds.
type Partition struct {
	Number  int
	Label   string
	Type    uuid.UUID
	UUID    uuid.UUID // its own
	Size    uint64    // bytes
	Content string    // "ext4 photos", "blank"
}

// Want is the plan: which disk, and what goes there.
type Want struct {
	Disk   Disk
	Others []string // the other disks, each with why it was not chosen
	System System
}

// String names a disk as an operator finds it again: "/dev/vda (8 GiB, QEMU HARDDISK, serial disk0,
// virtio)".
func (d Disk) String() string {
	facts := []string{disklayout.FormatSize(d.Size)}
	for _, f := range []struct{ before, value string }{{"", d.Model}, {"serial ", d.Serial}, {"wwid ", d.WWID}, {"", d.Transport}, {"", d.Bus}} {
		if f.value != "" {
			facts = append(facts, f.before+f.value)
		}
	}
	return d.Path + " (" + strings.Join(facts, ", ") + ")"
}
