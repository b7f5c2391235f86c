package hardware

import (
	"path/filepath"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
)

// VolumeDisks returns disks for package volumes.
func VolumeDisks(all []disk.Disk) (out []volumes.Disk) {
	for _, d := range all {
		one := volumes.Disk{
			Disk: diskmatch.Disk{
				Path: d.Path, Size: int64(d.Size), SectorSize: int64(d.SectorSize), Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus,
				Transport: d.Transport, Rotational: d.Rotational, ReadOnly: d.ReadOnly,
			},
			Boot: d.Boot, Table: d.Table.Kind, First: d.First, End: d.End, Alignment: d.Alignment,
		}
		for _, p := range d.Partitions {
			one.Partitions = append(one.Partitions, volumes.Partition{
				Path: p.Path, Label: p.Label, UUID: p.UUID, Start: p.Start, Size: p.Size,
				Content: volumes.Content{Kind: p.Content.Kind, UUID: p.Content.UUID, Size: p.Content.Size},
			})
		}
		out = append(out, one)
	}
	return out
}

// WearTargets returns the disks of a state for package wear.
func WearTargets(s disk.State) (out []wear.Target) {
	for _, d := range s.Disks {
		out = append(out, wear.Target{Path: d.Path, Model: d.Model, Serial: d.Serial, WWID: d.WWID, Transport: d.Transport})
	}
	return out
}

// InventoryDisks returns the disks of a state for the inventory.
func InventoryDisks(s disk.State) (out []inventory.Disk) {
	for _, d := range s.Disks {
		out = append(out, inventory.Disk{Name: filepath.Base(d.Path), SizeMiB: int64(d.Size >> 20), Model: d.Model, Serial: d.Serial, Rotational: d.Rotational})
	}
	return out
}
