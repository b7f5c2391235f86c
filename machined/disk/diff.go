package disk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/mkfs"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Diff lists what has to be done, in order. It is empty when both volumes are mounted and the table
// is as planned. The operations run programs with run; nil is enough to print them.
func Diff(have Have, want Want, run mkfs.Runner) []reconcile.Op {
	var ops []reconcile.Op
	i := slices.IndexFunc(have.Disks, func(d Disk) bool { return d.Path == want.Disk })
	if i < 0 {
		return nil // the disk has gone since the plan was made; the next plan says so
	}
	disk := have.Disks[i]
	if disk.Boot && disk.Shared {
		ops = append(ops, Identify{Disk: disk.Path})
	}
	table, changed := diffTable(disk, want)
	if changed {
		ops = append(ops, table)
	}
	for _, v := range want.Volumes {
		ops = append(ops, diffVolume(disk, have.Mounts, table, v, run)...)
	}
	return ops
}

// diffTable compares the tables.
func diffTable(disk Disk, want Want) (WriteTable, bool) {
	t := WriteTable{Disk: disk.Path, New: want.NewTable && !tableIs(disk, want), Mirror: disk.Table == "gpt" && !disk.BackupAtEnd}
	if t.New {
		t.Mirror = false
		t.Add = want.Partitions
		return t, true
	}
	for _, p := range disk.Partitions {
		i := slices.IndexFunc(want.Partitions, func(e Entry) bool { return same(e, p.Entry) })
		switch {
		case i < 0:
			t.Remove = append(t.Remove, p.Entry)
		case want.Partitions[i].Size > p.Size:
			t.Grow = append(t.Grow, want.Partitions[i])
		}
	}
	for _, e := range want.Partitions {
		if !slices.ContainsFunc(disk.Partitions, func(p Partition) bool { return same(e, p.Entry) }) {
			t.Add = append(t.Add, e)
		}
	}
	return t, t.Mirror || len(t.Add)+len(t.Grow)+len(t.Remove) > 0
}

// same reports whether both are the same partition: everything is equal but the size, which may
// grow. A number alone says nothing: a new partition may take the number of one that is removed.
func same(a, b Entry) bool {
	a.Size = b.Size
	return a == b
}

// tableIs reports whether the disk has the table that a new one would be.
func tableIs(disk Disk, want Want) bool {
	return disk.Table == "gpt" && slices.EqualFunc(disk.Partitions, want.Partitions, func(p Partition, e Entry) bool { return p.Entry == e })
}

// diffVolume brings one volume from the table to its mount point.
func diffVolume(disk Disk, mounts []mount.Mount, table WriteTable, v Volume, run mkfs.Runner) []reconcile.Op {
	var content Content // of a new partition: blank, because WriteTable wipes its place
	var room uint64
	for _, p := range disk.Partitions {
		if p.Number == v.Number && !table.creates(v.Number) {
			content, room = p.Content, p.Size
		}
	}
	for _, e := range table.Grow {
		if e.Number == v.Number {
			room = e.Size
		}
	}
	v.Format.run = run
	grow := content.Size > 0 && room >= content.Size+growStep
	var ops []reconcile.Op
	switch m, mounted := mountedAt(mounts, v.Mount.Target); {
	case mounted && m.Source == v.Mount.Source:
	case mounted:
		return nil // Plan has refused this; not ours to stack upon
	case v.holds(content):
		ops = append(ops, Check{Label: v.Format.Label, Device: v.Format.Device, run: run}, Mount{Label: v.Format.Label, Mount: v.Mount, Dirs: v.Dirs, Links: v.Links})
	case content.blank() || v.Wipe:
		// A file system that was made just now needs no check.
		ops = append(ops, v.Format, Mount{Label: v.Format.Label, Mount: v.Mount, Dirs: v.Dirs, Links: v.Links})
		grow = false
	default:
		return nil // foreign: Plan has refused this
	}
	if grow {
		ops = append(ops, GrowFilesystem{Label: v.Format.Label, Target: v.Mount.Target, Size: room})
	}
	return ops
}

// Identify gives the disk and its partitions GUIDs of their own in place of those of the disk
// image, which every machine that the image was written to would have: the first process finds the
// system disk by the GUID of its ESP. Roots keep theirs, which name what they hold.
type Identify struct {
	Disk string // path
}

func (i Identify) String() string { return "give " + i.Disk + " GUIDs of its own" }

// WriteTable changes the partition table in one go.
type WriteTable struct {
	Disk   string  // path
	New    bool    // begin with an empty table
	Remove []Entry // by number; nothing else is removed
	Add    []Entry
	Grow   []Entry // with the size they get
	// write both copies of the table, the backup at the end of the disk (any change does that too)
	Mirror bool
}

// creates reports whether the partition's content is gone or has never been.
func (t WriteTable) creates(number int) bool {
	return slices.ContainsFunc(t.Add, func(e Entry) bool { return e.Number == number })
}

func (t WriteTable) String() string {
	var parts []string
	if t.New {
		parts = append(parts, "new table")
	}
	for _, e := range t.Remove {
		parts = append(parts, "remove "+name(e))
	}
	for _, e := range t.Add {
		parts = append(parts, fmt.Sprintf("add %d %s (%s)", e.Number, e.Label, disklayout.FormatSize(e.Size)))
	}
	for _, e := range t.Grow {
		parts = append(parts, fmt.Sprintf("grow %d %s to %s", e.Number, e.Label, disklayout.FormatSize(e.Size)))
	}
	if t.Mirror {
		parts = append(parts, "mirror the table at the end of the disk")
	}
	return "partition " + t.Disk + ": " + strings.Join(parts, ", ")
}

// Format makes an ext4 file system, and forgets what was there.
type Format struct {
	Label           string
	Device          string
	ReservedPercent int // of the blocks, for root only
	Quotas          mkfs.Quotas
	run             mkfs.Runner
}

func (f Format) String() string { return "format " + f.Label + " (" + f.Device + ") as ext4" }

// Check replays the journal and repairs what can be repaired without asking. It does not go on to
// mount what it could not repair.
type Check struct {
	Label  string
	Device string
	run    mkfs.Runner
}

func (c Check) String() string { return "check " + c.Label + " (" + c.Device + ")" }

// Mount mounts a volume.
type Mount struct {
	Label string
	mount.Mount
	Dirs  []string          // made, relative to the target
	Links map[string]string // made, relative to the target
}

func (m Mount) String() string {
	return fmt.Sprintf("mount %s (%s) at %s (%s)", m.Label, m.Source, m.Target, m.Flags)
}

// GrowFilesystem grows a mounted ext4 file system to the size of its partition.
type GrowFilesystem struct {
	Label  string
	Target string
	Size   uint64 // of the partition, bytes
}

func (g GrowFilesystem) String() string {
	return fmt.Sprintf("grow the file system of %s (%s) to %s", g.Label, g.Target, disklayout.FormatSize(g.Size))
}

// Wipe empties a partition, so that the next boot makes its file system anew. Its content is
// unreachable then, but still there.
type Wipe struct {
	Label  string
	Device string
}

func (w Wipe) String() string { return "wipe " + w.Label + " (" + w.Device + ")" }

// Erase has the content of a partition that was wiped go. STATE has the machine's keys, and is
// overwritten and read back; of DATA, which would take hours, the disk discards it, and samples are
// read back. Where the disk keeps it, as much as possible is overwritten, and the rest is said to
// be there. Secrets in etcd are encrypted with a key of STATE.
type Erase struct {
	Label  string
	Device string
	tell   func(string) // what became of the content; may be nil
}

func (e Erase) String() string {
	if e.Label == disklayout.State {
		return "overwrite " + e.Label + " (" + e.Device + ")"
	}
	return "discard " + e.Label + " (" + e.Device + ")"
}

// Reset lists what a reset of some of our volumes does, by their labels. They must be unmounted by
// then. Those of other disks, which may be another machine's, or this one's from before, stay as
// they are. DATA goes first: a reset that is cut short leaves a machine that is still configured
// and can be reset again, never one with a new identity and old data. What may take long comes
// after that, and of it the keys first. tell is given what became of the content, and may be nil.
func Reset(have Have, labels []string, tell func(string)) []reconcile.Op {
	var ops, slow []reconcile.Op
	for _, label := range []string{disklayout.Data, disklayout.State} {
		if !slices.Contains(labels, label) {
			continue
		}
		for _, d := range have.Disks {
			for _, p := range d.Partitions {
				if d.Boot && p.Label == label && ours(p.Entry) && !p.Content.blank() {
					ops = append(ops, Wipe{Label: label, Device: p.Path})
					slow = slices.Insert(slow, 0, reconcile.Op(Erase{Label: label, Device: p.Path, tell: tell}))
				}
			}
		}
	}
	return append(ops, slow...)
}
