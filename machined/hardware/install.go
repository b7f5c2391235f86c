package hardware

import (
	"slices"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// InstallDisks returns disks for package install. media are the boot media with a configuration.
func InstallDisks(all []disk.Disk, media []seed.Device) (out []install.Disk) {
	for _, d := range all {
		out = append(out, installDisk(d, media))
	}
	return out
}

func installDisk(d disk.Disk, media []seed.Device) install.Disk {
	out := install.Disk{
		Path: d.Path, Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus, Transport: d.Transport, Size: d.Size, SectorSize: d.SectorSize,
		Rotational: d.Rotational, ReadOnly: d.ReadOnly, Table: d.Table.Kind,
	}
	if d.Boot {
		out.Medium = "the system runs from it"
	} else if i := slices.IndexFunc(media, func(s seed.Device) bool { return s.Disk == d.Path }); i >= 0 {
		out.Medium = "it is the medium " + media[i].Label
	}
	for _, p := range d.Partitions {
		out.Bootable = out.Bootable || p.Label == layout.ESP && p.Loader
		out.Partitions = append(out.Partitions, install.Partition{Number: p.Number, Label: p.Label, Type: p.Type, UUID: p.UUID, Size: p.Size, Content: p.Content.String()})
	}
	return out
}

// UpgradeSlot returns the partitions of the two slots for package upgrade. The system runs in slot
// running, "A" or "B". The error is upgrade.ErrNoSlots.
func UpgradeSlot(all []disk.Disk, running string) (upgrade.Slot, error) {
	label := layout.RootA
	if running == "A" {
		label = layout.RootB
	}
	for _, d := range all {
		p := upgrade.Slot{Disk: d.Path, Label: label}
		for _, part := range d.Partitions {
			switch part.Label {
			case layout.ESP:
				p.ESP = part.Path
			case label:
				p.Root, p.Number, p.Size, p.UUID = part.Path, part.Number, int64(part.Size), part.UUID
			case layout.RootA, layout.RootB:
				p.Running = part.Path
			}
		}
		if d.Boot && p.ESP != "" && p.Root != "" {
			return p, nil
		}
	}
	return upgrade.Slot{}, upgrade.ErrNoSlots
}
