package hardware

import (
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
)

// TestDisks checks that the three conversions of a disk (for volumes, wear and inventory) copy each
// property that they need.
func TestDisks(t *testing.T) {
	partition, content := uuid.New(), uuid.New()
	all := []disk.Disk{{
		Path: "/dev/sda", Boot: true,
		Hardware: disk.Hardware{Size: 1 << 40, SectorSize: 4096, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", Rotational: true, ReadOnly: true},
		Table: disk.Table{Kind: "gpt", First: 1, End: 2, Alignment: 3, Partitions: []disk.Partition{{
			Path: "/dev/sda1", UUID: partition, Entry: disk.Entry{Number: 1, Label: "a", Start: 4, Size: 5}, Content: disk.Content{Kind: "ext4", UUID: content, Size: 6},
		}}},
	}, {Path: "/dev/sdb"}}
	wantVolumes := []volumes.Disk{{
		Disk: diskmatch.Disk{Path: "/dev/sda", Size: 1 << 40, SectorSize: 4096, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", Rotational: true, ReadOnly: true},
		Boot: true, Table: "gpt", First: 1, End: 2, Alignment: 3,
		Partitions: []volumes.Partition{{Path: "/dev/sda1", Label: "a", UUID: partition, Start: 4, Size: 5, Content: volumes.Content{Kind: "ext4", UUID: content, Size: 6}}},
	}, {Disk: diskmatch.Disk{Path: "/dev/sdb"}}}
	if got := VolumeDisks(all); !reflect.DeepEqual(got, wantVolumes) {
		t.Errorf("volumes: %+v, want %+v", got, wantVolumes)
	}
	if got, want := WearTargets(disk.State{Disks: all}), []wear.Target{{Path: "/dev/sda", Model: "m", Serial: "s", WWID: "w", Transport: "t"}, {Path: "/dev/sdb"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("wear: %+v, want %+v", got, want)
	}
	if got, want := InventoryDisks(disk.State{Disks: all}), []inventory.Disk{{Name: "sda", SizeMiB: 1 << 20, Model: "m", Serial: "s", Rotational: true}, {Name: "sdb"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("inventory: %+v, want %+v", got, want)
	}
}
