package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/vpd"
)

// TestBlockDevices reads a directory like /sys/class/block. Each partition must have its GUID from
// the partition table. Each disk must have its identifier, and the disk on USB this transport.
func TestBlockDevices(t *testing.T) {
	root := t.TempDir()
	class := filepath.Join(root, "class/block")
	if err := os.MkdirAll(class, 0o755); err != nil {
		t.Fatal(err)
	}
	add := func(device string, files map[string]string) {
		t.Helper()
		dir := filepath.Join(root, "devices", device)
		for name, text := range files {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(filepath.Join("../../devices", device), filepath.Join(class, filepath.Base(device))); err != nil {
			t.Fatal(err)
		}
	}
	const sata, usb = "pci0/ata1/block/sda", "pci0/usb1/1-1/block/sdb"
	for _, disk := range []string{sata, usb} {
		name := filepath.Base(disk)
		add(disk, map[string]string{"uevent": "DEVNAME=" + name + "\nDEVTYPE=disk\n", "device/wwid": "naa.5000c500a1b2c3d4\n"})
		add(disk+"/"+name+"1", map[string]string{"uevent": "DEVNAME=" + name + "1\nDEVTYPE=partition\nPARTN=1\nPARTNAME=ROOT-A\n"})
	}
	guid := uuid.MustParse("00010203-0405-0607-0809-0a0b0c0d0e0f")
	devices, err := blockDevices(class, func(string) []uuid.UUID { return []uuid.UUID{guid} })
	if err != nil {
		t.Fatal(err)
	}
	want := []blockDevice{
		{name: "sda", identity: vpd.Identity{WWID: "naa.5000c500a1b2c3d4"}},
		{name: "sda1", disk: "sda", number: 1, label: "ROOT-A", partUUID: guid},
		{name: "sdb", identity: vpd.Identity{WWID: "naa.5000c500a1b2c3d4", Transport: "usb"}},
		{name: "sdb1", disk: "sdb", number: 1, label: "ROOT-A", partUUID: guid},
	}
	if len(devices) != len(want) {
		t.Fatalf("blockDevices returns %+v", devices)
	}
	for i, d := range devices {
		if d != want[i] {
			t.Errorf("%+v, want %+v", d, want[i])
		}
	}
}
