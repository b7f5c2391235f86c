package main

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/health"
	api "github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/superblock"
)

// TestStorageHealth checks that a new error is a single event, and on the console, in topic "disks"
// and in health. An error that the check at boot has repaired stays visible, and the machine is
// healthy.
func TestStorageHealth(t *testing.T) {
	m := &machine{events: newEventLog(), disks: cell.New(diskState{})}
	healthNow := func() *api.HealthResponse {
		h := &api.HealthResponse{Healthy: true}
		now, _ := m.disks.Get()
		health.Add(h, storageCheck(now.Filesystems))
		return h
	}
	said := func() (lines []string) {
		for _, e := range m.events.after(0) {
			if strings.Contains(e.message, "the file system") {
				lines = append(lines, e.message)
			}
		}
		return lines
	}
	sound := disk.FilesystemErrors{Label: "DATA", Device: "/dev/vda5"}
	broken := sound
	broken.Faults = superblock.Errors{Marked: true, Count: 1, First: superblock.Error{Function: "ext4_lookup"}}
	m.updateFSErrors([]disk.FilesystemErrors{sound})
	if h := healthNow(); !h.Healthy || len(h.Checks) != 0 || len(said()) != 0 {
		t.Errorf("a sound one: %v, %q", h, said())
	}
	for range 3 {
		m.updateFSErrors([]disk.FilesystemErrors{broken})
	}
	if h := healthNow(); h.Healthy || len(h.Checks) != 1 || h.Checks[0].Ok || !strings.Contains(h.Checks[0].Detail, "DATA (/dev/vda5): the file system has 1 error") || len(said()) != 1 {
		t.Errorf("a broken one: %v, %q", h, said())
	}
	repaired := broken
	repaired.Checked = true
	m.disks.Set(diskState{Filesystems: []disk.FilesystemErrors{repaired}}) // after the next boot
	m.updateFSErrors([]disk.FilesystemErrors{sound})
	if h := healthNow(); !h.Healthy || len(h.Checks) != 1 || !strings.Contains(h.Checks[0].Detail, "had 1 error") {
		t.Errorf("a repaired one: %v", h)
	}
	m.updateFSErrors([]disk.FilesystemErrors{broken})
	if h := healthNow(); h.Healthy || len(said()) != 2 {
		t.Errorf("one that breaks again: %v, %q", h, said())
	}
}

// TestOwnDisk checks that a read of the system disk retains the data of the others.
func TestOwnDisk(t *testing.T) {
	of := func(path, kind string) disk.Disk {
		return disk.Disk{Path: path, Boot: path == "/dev/vda", Table: disk.Table{Kind: kind}}
	}
	known := []disk.Disk{of("/dev/vda", "gpt"), of("/dev/vdb", "a whole-disk ext4")}
	read := []disk.Disk{of("/dev/vda", "gpt"), of("/dev/vdb", "unexamined"), of("/dev/vdc", "unexamined")}
	read[0].Size = 5
	got := mergeDisks(read, known)
	if len(got) != 3 || got[0].Size != 5 || got[1].Table.Kind != "a whole-disk ext4" || got[2].Table.Kind != "unexamined" {
		t.Errorf("%+v", got)
	}
}
