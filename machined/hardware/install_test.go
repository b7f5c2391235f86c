package hardware

import (
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// TestInstallDisk checks that installDisk copies all properties of a disk. It marks the disk from
// which the system runs, and the medium of a configuration, because nothing can be installed on
// them.
func TestInstallDisk(t *testing.T) {
	root := uuid.New()
	d := disk.Disk{
		Path: "/dev/sda", Hardware: disk.Hardware{Size: 1 << 40, SectorSize: 512, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", Rotational: true, ReadOnly: true},
		Table: disk.Table{Kind: "gpt", Partitions: []disk.Partition{{UUID: root, Entry: disk.Entry{Number: 1, Label: layout.ESP, Type: layout.TypeESP, Size: 5}, Content: disk.Content{Kind: "vfat", Label: "ESP"}}}},
	}
	want := install.Disk{
		Path: "/dev/sda", Size: 1 << 40, SectorSize: 512, Model: "m", Serial: "s", WWID: "w", Bus: "b", Transport: "t", Rotational: true, ReadOnly: true, Table: "gpt",
		Partitions: []install.Partition{{Number: 1, Label: layout.ESP, Type: layout.TypeESP, UUID: root, Size: 5, Content: "vfat ESP"}},
	}
	if got := installDisk(d, []seed.Device{{Path: "/dev/sdb1", Disk: "/dev/sdb", Label: "cidata"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := installDisk(d, []seed.Device{{Path: "/dev/sda1", Disk: "/dev/sda", Label: "cidata"}}).Medium; got != "it is the medium cidata" {
		t.Errorf("the disk with the configuration: the field Medium is %q", got)
	}
	d.Boot = true
	if installDisk(d, nil).Medium == "" {
		t.Error("the disk from which the system runs is not marked as a medium")
	}
}

// TestUpgradeSlot checks that an upgrade writes to the other slot of the disk from which the system
// runs. Another disk has a copy of all partitions.
func TestUpgradeSlot(t *testing.T) {
	partition := func(path, label string, number int) disk.Partition {
		return disk.Partition{Entry: disk.Entry{Number: number, Label: label, Size: 7}, Path: path}
	}
	system := disk.Disk{Path: "/dev/vda", Boot: true, Table: disk.Table{Partitions: []disk.Partition{
		partition("/dev/vda1", layout.ESP, 1), partition("/dev/vda2", layout.RootA, 2), partition("/dev/vda3", layout.RootB, 3),
	}}}
	copied := system
	copied.Path, copied.Boot = "/dev/vdb", false
	for running, want := range map[string]upgrade.Slot{
		"A": {Disk: "/dev/vda", ESP: "/dev/vda1", Root: "/dev/vda3", Label: layout.RootB, Number: 3, Size: 7, Running: "/dev/vda2"},
		"B": {Disk: "/dev/vda", ESP: "/dev/vda1", Root: "/dev/vda2", Label: layout.RootA, Number: 2, Size: 7, Running: "/dev/vda3"},
	} {
		if got, err := UpgradeSlot([]disk.Disk{copied, system}, running); err != nil || got != want {
			t.Errorf("%s: %+v, %v", running, got, err)
		}
	}
	system.Partitions = system.Partitions[:2]
	if _, err := UpgradeSlot([]disk.Disk{copied, system}, "A"); !errors.Is(err, upgrade.ErrNoSlots) {
		t.Errorf("without the other slot: %v", err)
	}
}
