package main

import (
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// TestInstallDisk checks that all properties of a disk reach the selection, and that boot media are
// marked.
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
		t.Errorf("a disk that is the configuration's medium: %q", got)
	}
	d.Boot = true
	if installDisk(d, nil).Medium == "" {
		t.Error("the disk that the system runs from may be installed to")
	}
}
