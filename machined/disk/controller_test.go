package disk

import (
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
)

// TestUpdateErrors checks that a new error causes a single line on the console, and is in the state
// of the disks. An error that the check at boot has repaired stays visible.
func TestUpdateErrors(t *testing.T) {
	var lines []string
	c := New(Deps{Console: func(line string) { lines = append(lines, line) }})
	sound := FilesystemErrors{Label: "DATA", Device: "/dev/vda5"}
	broken := sound
	broken.Faults = superblock.Errors{Marked: true, Count: 1, First: superblock.Error{Function: "ext4_lookup"}}
	repaired := broken
	repaired.Checked = true
	for _, step := range []struct {
		name  string
		boot  []FilesystemErrors // state before the read, after a boot; nil: unchanged
		read  FilesystemErrors
		want  []FilesystemErrors
		lines int
	}{
		{"sound", nil, sound, nil, 0},
		{"broken", nil, broken, []FilesystemErrors{broken}, 1},
		{"still broken", nil, broken, []FilesystemErrors{broken}, 1},
		{"repaired", []FilesystemErrors{repaired}, sound, []FilesystemErrors{repaired}, 1},
		{"broken again", nil, broken, []FilesystemErrors{broken}, 2},
	} {
		if step.boot != nil {
			c.state.Set(State{Filesystems: step.boot})
		}
		c.updateErrors([]FilesystemErrors{step.read})
		if now, _ := c.state.Get(); !slices.Equal(now.Filesystems, step.want) || len(lines) != step.lines {
			t.Errorf("%s: %+v, %q", step.name, now.Filesystems, lines)
		}
	}
}

// TestOwnDisk checks that a read that examines only the system disk retains the examination of the
// other disks.
func TestOwnDisk(t *testing.T) {
	of := func(path, kind string) Disk {
		return Disk{Path: path, Boot: path == "/dev/vda", Table: Table{Kind: kind}}
	}
	known := []Disk{of("/dev/vda", "gpt"), of("/dev/vdb", "a whole-disk ext4")}
	read := []Disk{of("/dev/vda", "gpt"), of("/dev/vdb", "unexamined"), of("/dev/vdc", "unexamined")}
	read[0].Size = 5
	got := mergeDisks(read, known)
	if len(got) != 3 || got[0].Size != 5 || got[1].Table.Kind != "a whole-disk ext4" || got[2].Table.Kind != "unexamined" {
		t.Errorf("mergeDisks returns %+v", got)
	}
}

// TestStoreDropsOlderRead checks that a read of Watch that began before the last read of SetUp does
// not replace the result of SetUp. Watch then reads the disks again.
func TestStoreDropsOlderRead(t *testing.T) {
	c := New(Deps{})
	c.state.Set(State{Disks: []Disk{{Path: "/dev/vda"}}})
	began := c.setUps.Load()
	c.setUps.Add(1)
	c.store([]Disk{{Path: "/dev/old"}}, began)
	if got, _ := c.state.Get(); got.Disks[0].Path != "/dev/vda" {
		t.Errorf("an older read replaced the disks with %v", got.Disks)
	}
	select {
	case <-c.changed:
	default:
		t.Error("Watch does not read the disks again")
	}
	c.store([]Disk{{Path: "/dev/vdb"}}, c.setUps.Load())
	if got, _ := c.state.Get(); got.Disks[0].Path != "/dev/vdb" {
		t.Errorf("a new read is not stored: %v", got.Disks)
	}
}
