package disk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Diff returns the operations that lead from have to want, in order. The list is empty if both
// volumes are mounted and the table matches the plan. The operations run programs with run; run may
// be nil if the caller only prints them.
func Diff(have Have, want Want, run mkfs.Runner) []reconcile.Op {
	var ops []reconcile.Op
	i := slices.IndexFunc(have.Disks, func(d Disk) bool { return d.Path == want.Disk })
	if i < 0 {
		return nil // the disk disappeared after the plan; the next plan reports it
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

// diffTable compares the actual table with the plan. It returns true if the table must change.
func diffTable(disk Disk, want Want) (WriteTable, bool) {
	t := WriteTable{Disk: disk.Path, New: want.NewTable && !tableIs(disk, want), Mirror: disk.Table.Kind == "gpt" && !disk.BackupAtEnd}
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

// same reports whether a and b are the same partition: all fields but the size, which may grow, are
// equal. The number alone is not enough: a new partition may take the number of a removed one.
func same(a, b Entry) bool {
	a.Size = b.Size
	return a == b
}

// tableIs reports whether the disk already has the planned new table.
func tableIs(disk Disk, want Want) bool {
	return disk.Table.Kind == "gpt" && slices.EqualFunc(disk.Partitions, want.Partitions, func(p Partition, e Entry) bool { return p.Entry == e })
}

// diffVolume returns the operations for a volume after the change of the partition table: check or
// format, mount, grow.
func diffVolume(disk Disk, mounts []mount.Mount, table WriteTable, v Volume, run mkfs.Runner) []reconcile.Op {
	var p Partition // a new partition is blank, because WriteTable wipes its range
	for _, present := range disk.Partitions {
		if present.Number == v.Number && !table.creates(v.Number) {
			p = present
		}
	}
	room := p.Size
	for _, e := range table.Grow {
		if e.Number == v.Number {
			room = e.Size
		}
	}
	if p.Encryption != nil {
		room -= min(diskkey.HeaderSize, room)
	}
	v.Format.run = run
	grow := p.Content.Size > 0 && room >= p.Content.Size+growStep
	add := Mount{Label: v.Format.Label, Mount: v.Mount, Dirs: v.Dirs, Links: v.Links}
	var ops []reconcile.Op
	switch m, mounted := mount.Topmost(mounts, v.Mount.Target); {
	case mounted && m.Source == v.Mount.Source:
		if p.Encryption != nil && p.Encryption.New {
			ops = append(ops, v.finish()...) // an operation of this boot has failed
		}
	case mounted:
		return nil // Plan rejects this; do not mount over a foreign file system
	case v.holds(p):
		if p.locked() {
			ops = append(ops, Unlock{Label: v.Format.Label, Device: v.Partition})
		}
		ops = append(ops, Check{Label: v.Format.Label, Device: v.Format.Device, run: run}, add)
	case p.locked():
		return nil // Plan rejects this, also if foreign content may be wiped
	case p.Content.blank() || v.Wipe:
		// A new file system needs no check.
		ops = append(ops, v.format(add)...)
		grow = false
	default:
		return nil // foreign: Plan rejects this
	}
	if grow {
		ops = append(ops, GrowFilesystem{Label: v.Format.Label, Target: v.Mount.Target, Size: room})
	}
	return ops
}

// Identify replaces the GUIDs from the disk image by new GUIDs for the disk and its partitions.
// Without new GUIDs, all disks with the same image would share them, but init finds the system disk
// by the GUID of its ESP. Root partitions keep their GUIDs, which identify their content.
type Identify struct {
	Disk string // path
}

func (i Identify) String() string { return "give " + i.Disk + " unique GUIDs" }

// WriteTable changes the partition table in a single operation.
type WriteTable struct {
	Disk   string  // path
	New    bool    // start with an empty table
	Remove []Entry // each is removed only if the table still has exactly this entry
	Add    []Entry
	Grow   []Entry // existing entries, with their new size
	// Mirror writes the two copies of the table again: the backup goes to the end of the disk.
	// Every other change of the table does this, too.
	Mirror bool
}

// creates reports whether the operation creates the partition. A created partition has no content.
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
		parts = append(parts, fmt.Sprintf("add %d %s (%s)", e.Number, e.Label, layout.FormatSize(e.Size)))
	}
	for _, e := range t.Grow {
		parts = append(parts, fmt.Sprintf("grow %d %s to %s", e.Number, e.Label, layout.FormatSize(e.Size)))
	}
	if t.Mirror {
		parts = append(parts, "mirror the table at the end of the disk")
	}
	return "partition " + t.Disk + ": " + strings.Join(parts, ", ")
}

// Format creates an ext4 file system and discards the previous content.
type Format struct {
	Label           string
	Device          string
	ReservedPercent int // share of the blocks reserved for root
	Quotas          mkfs.Quotas
	run             mkfs.Runner
}

func (f Format) String() string { return "format " + f.Label + " (" + f.Device + ") as ext4" }

// Check replays the journal and performs the repairs that need no confirmation. It fails if errors
// remain; then the volume is not mounted.
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
	Dirs  []string          // directories to create, relative to the target
	Links map[string]string // symbolic links to create, relative to the target
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
	return fmt.Sprintf("grow the file system of %s (%s) to %s", g.Label, g.Target, layout.FormatSize(g.Size))
}

// Wipe removes the signatures of a partition, so that the next boot creates its file system again.
// The old content is then inaccessible, but still on the disk.
type Wipe struct {
	Label  string
	Device string
}

func (w Wipe) String() string { return "wipe " + w.Label + " (" + w.Device + ")" }

// Erase removes the content of a wiped partition from the disk. STATE holds the keys of the
// machine; Erase overwrites it and reads it back. To overwrite DATA would take hours, so Erase
// makes the disk discard DATA, and reads back samples. If the disk retains the data, Erase
// overwrites as much as possible and reports the rest. Even then, Secrets in the etcd data are
// encrypted with a key on STATE.
type Erase struct {
	Label  string
	Device string
	report func(string) // receives the result; may be nil
}

func (e Erase) String() string {
	if e.Label == layout.State {
		return "overwrite " + e.Label + " (" + e.Device + ")"
	}
	return "discard " + e.Label + " (" + e.Device + ")"
}

// Reset returns the operations of a reset of the volumes with the given labels. The volumes must be
// unmounted. Reset changes only the boot disk, because STATE and DATA on other disks may belong to
// another machine or to an earlier installation. DATA is wiped before STATE, so an interrupted
// reset leaves a machine that is still configured and can be reset again, never a machine with a
// new identity and old data. The keys of encrypted volumes are destroyed first: from then on no
// person reads the content, unless the person has a former copy of the header and its TPM or a
// recovery key. An encrypted volume whose format was interrupted counts as blank, but can have the
// machine key, so it is wiped, too. The slow Erase operations follow, first that of STATE, which
// holds the keys. report receives the results, and may be nil.
func Reset(have Have, labels []string, report func(string)) []reconcile.Op {
	var keys, ops, slow []reconcile.Op
	for _, label := range []string{layout.Data, layout.State} {
		if !slices.Contains(labels, label) {
			continue
		}
		for _, d := range have.Disks {
			for _, p := range d.Partitions {
				if d.Boot && p.Label == label && isSystemPartition(p.Entry) && (!p.Content.blank() || p.Encryption != nil) {
					if p.Encryption != nil {
						keys = append(keys, DestroyKeys{Label: label, Device: p.Path})
					}
					ops = append(ops, Wipe{Label: label, Device: p.Path})
					slow = slices.Insert(slow, 0, reconcile.Op(Erase{Label: label, Device: p.Path, report: report}))
				}
			}
		}
	}
	return slices.Concat(keys, ops, slow)
}
