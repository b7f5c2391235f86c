package volumes

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Tools has the functions and paths that the operations need to run. The zero value is sufficient
// to print operations.
type Tools struct {
	Run mkfs.Runner
	// Examine examines the disk with a path again. CreatePartition calls it before it writes.
	Examine func(ctx context.Context, path string) (Disk, error)
	// Records is the file with the records.
	Records string
}

// Diff returns the operations that prepare the usable volumes, in order, and the operations that
// unmount volumes without a document. The list is empty if all usable volumes are mounted and in
// use.
//
// If Tools.Examine is set, the operations of a volume end with the creation of its partition,
// because the next read of the disks must find the partition first. If Tools.Examine is nil, the
// list is for a dry run and contains the later operations, too.
func Diff(have Have, want Want, t Tools) []reconcile.Op {
	d := newDiffer(have, want, t)
	var ops []reconcile.Op
	for _, v := range want.Volumes {
		ops = append(ops, d.volume(v)...)
	}
	return ops
}

// volume returns the operations of one volume. They do not depend on the operations of other
// volumes.
func (d differ) volume(v Planned) []reconcile.Op {
	switch {
	case !v.Document:
		return d.leave(v)
	case v.Usable:
		return d.prepare(v)
	}
	return nil
}

func newDiffer(have Have, want Want, t Tools) differ {
	d := differ{have: have, tools: t}
	for _, v := range want.Volumes {
		d.known = append(d.known, v.Record.Partition)
		d.swaps = d.swaps || v.Document && v.Use == config.UseSwap
	}
	return d
}

// differ has the input of a diff that all volumes share.
type differ struct {
	have  Have
	tools Tools
	known []uuid.UUID // GUIDs of the partitions that the machine has created
	swaps bool        // true if a document describes a volume for swap
}

// leave returns the operations that unmount a volume without a document. A part of DATA stays
// mounted until the next boot. Its links on DATA stay until the volume is wiped, so no program can
// write to DATA in place of the volume.
func (d differ) leave(v Planned) (ops []reconcile.Op) {
	if v.Use.IsPart() && v.Record.Placed {
		return nil
	}
	if v.Use == config.UseSwap {
		if v.Mounted {
			ops = append(ops, SwapOff{Name: v.Name, Device: v.Partition.Path})
		}
		if !d.swaps && d.have.Zswap.Percent > 0 {
			ops = append(ops, SetZswap{})
		}
		return ops
	}
	for _, at := range places(v.Volume) {
		if d.have.Places[at.path].Link == target(v.Name, at) {
			ops = append(ops, Unlink{Path: at.path})
		}
	}
	if v.Mounted {
		ops = append(ops, Unmount{Name: v.Name, Target: root(v.Name)})
	}
	return ops
}

// prepare returns the operations of a volume with a document: from the record and the partition to
// the directories on DATA.
func (d differ) prepare(v Planned) (ops []reconcile.Op) {
	record := v.Record
	if !v.Recorded {
		ops = append(ops, d.set(record))
	}
	if v.Partition.Path == "" {
		ops = append(ops, CreatePartition{Disk: v.Disk.Path, Name: v.Name, GUID: record.Partition, Size: v.Size, NewTable: v.NewTable, known: d.known, examine: d.tools.Examine})
		if d.tools.Examine != nil {
			return ops
		}
	}
	if v.Grow > 0 {
		ops = append(ops, GrowPartition{Disk: v.Disk.Path, Name: v.Name, GUID: record.Partition, Size: v.Grow})
	}
	if v.Use == config.UseSwap {
		return append(ops, d.prepareSwap(v, record)...)
	}
	c := v.Partition.Content
	m, mounted := mount.Topmost(d.have.Mounts, root(v.Name))
	if mounted && m.Source != v.Partition.Path && !present(d.have.Disks, m.Source) {
		ops, mounted = append(ops, Detach{Name: v.Name, Source: m.Source}), false
	}
	formatted := c.Kind == ext4 && c.UUID == record.Filesystem || record.Complete
	if !formatted {
		ops = append(ops, Format{Name: v.Name, Disk: v.Disk.Path, Device: v.Partition.Path, Kind: ext4, Filesystem: record.Filesystem, run: d.tools.Run})
	}
	if !record.Complete {
		record.Complete, record.Discard = true, uuid.Nil
		ops = append(ops, d.set(record))
	}
	if !mounted {
		// e2fsck must not check a file system that is still mounted elsewhere, for example in a pod
		if formatted && !mountedFrom(d.have.Mounts, v.Partition.Path) {
			ops = append(ops, Check{Name: v.Name, Device: v.Partition.Path, run: d.tools.Run})
		}
		ops = append(ops, d.mount(v))
	}
	partition := max(v.Partition.Size, v.Grow)
	if formatted && c.Size > 0 && partition >= c.Size+growStep {
		ops = append(ops, GrowFilesystem{Name: v.Name, Target: root(v.Name), Size: partition})
	}
	return append(ops, d.inPlace(v, record)...)
}

// prepareSwap returns the operations of a volume for swap, after its partition exists.
func (d differ) prepareSwap(v Planned, record Record) (ops []reconcile.Op) {
	c, device, using := v.Partition.Content, v.Partition.Path, v.Mounted
	formatted := c.Kind == swapArea && c.UUID == record.Filesystem
	format := Format{Name: v.Name, Disk: v.Disk.Path, Device: device, Kind: swapArea, Filesystem: record.Filesystem}
	switch size := max(v.Partition.Size, v.Grow); {
	case !formatted && !using:
		ops = append(ops, format)
	case formatted && size >= c.Size+growStep:
		if using {
			ops, using = append(ops, SwapOff{Name: v.Name, Device: device}), false
		}
		record.Complete = false // a power cut during Format can leave a blank partition
		ops = append(ops, d.set(record), format)
	}
	if !record.Complete {
		record.Complete = true
		ops = append(ops, d.set(record))
	}
	if z := d.have.Zswap; !z.Missing && (z.Percent != v.Swap.ZswapPercent || z.Percent > 0 && !z.Shrinker) {
		ops = append(ops, SetZswap{Percent: v.Swap.ZswapPercent})
	}
	if !using {
		ops = append(ops, SwapOn{Name: v.Name, Disk: v.Disk.Path, Device: device, Discard: v.Swap.Discard})
	}
	return ops
}

// set returns the operation that stores a record.
func (d differ) set(r Record) SetRecord { return SetRecord{Record: r, file: d.tools.Records} }

// mount returns the operation that mounts a volume.
func (d differ) mount(v Planned) Mount {
	m := Mount{Name: v.Name, Disk: v.Disk.Path, Device: v.Partition.Path, Flags: v.Flags, Data: v.Data}
	for _, at := range places(v.Volume) {
		m.Dirs = append(m.Dirs, Dir{at.dir, at.mode})
	}
	if len(m.Dirs) == 0 {
		m.Dirs = []Dir{{classDir, 0o700}}
	}
	return m
}

// inPlace returns the operations that replace directories of DATA by the volume. The data in a
// directory move to the volume first. The record is marked as placed at the end: after a power cut
// before this mark, the remaining directories still move.
func (d differ) inPlace(v Planned, record Record) (ops []reconcile.Op) {
	for _, at := range places(v.Volume) {
		have, to := d.have.Places[at.path], target(v.Name, at)
		there := have.Link == to || at.bind && mountedAt(d.have.Mounts, at.path)
		switch {
		case there && have.Moved:
			ops = append(ops, RemoveMoved{Path: at.path})
		case there:
		case at.bind && d.have.Busy: // pods have open logs; the next boot mounts the directory
			return ops
		case !have.Empty && have.Link == "" && !(at.bind && record.Placed):
			ops = append(ops, Move{Name: v.Name, From: at.path, To: to, Directory: at.bind})
			fallthrough
		default:
			if at.bind {
				ops = append(ops, Bind{From: to, To: at.path, Flags: v.Flags})
			} else {
				ops = append(ops, Link{Path: at.path, Target: to})
			}
		}
	}
	if len(places(v.Volume)) > 0 && !record.Placed {
		record.Placed = true
		ops = append(ops, d.set(record))
	}
	return ops
}

// SetRecord stores the record of a volume.
type SetRecord struct {
	Record
	file string
}

func (s SetRecord) String() string {
	switch {
	case s.Placed:
		return fmt.Sprintf("record that volume %s is in use for %s", s.Name, s.Use)
	case s.Complete:
		return fmt.Sprintf("record that volume %s is formatted", s.Name)
	}
	return fmt.Sprintf("record volume %s on %s", s.Name, s.Disk)
}

// CreatePartition adds a partition to a disk. It writes a new partition table to a blank disk. It
// examines the disk again before it writes.
type CreatePartition struct {
	Disk     string // path
	Name     string
	GUID     uuid.UUID
	Size     uint64 // in bytes; 0: the largest free space
	NewTable bool
	known    []uuid.UUID // GUIDs of the partitions that the disk may have
	examine  func(ctx context.Context, path string) (Disk, error)
}

func (c CreatePartition) String() string {
	size, table := "the rest", ""
	if c.Size > 0 {
		size = layout.FormatSize(c.Size)
	}
	if c.NewTable {
		table = "new table, "
	}
	return fmt.Sprintf("partition %s: %sadd %s (%s)", c.Disk, table, c.Name, size)
}

// GrowPartition grows a partition.
type GrowPartition struct {
	Disk string
	Name string
	GUID uuid.UUID
	Size uint64 // bytes
}

func (g GrowPartition) String() string {
	return fmt.Sprintf("partition %s: grow %s to %s", g.Disk, g.Name, layout.FormatSize(g.Size))
}

// Format creates the file system of a volume, or the header of a swap area.
type Format struct {
	Name       string
	Disk       string
	Device     string // of the partition
	Kind       string // "ext4" or "swap"
	Filesystem uuid.UUID
	run        mkfs.Runner
}

func (f Format) String() string {
	return fmt.Sprintf("format volume %s on %s as %s", f.Name, f.Disk, f.Kind)
}

// SwapOn starts the use of a swap area. It fails if the kernel could swap the memory of the
// system's own processes.
type SwapOn struct {
	Name    string
	Disk    string
	Device  string // of the partition
	Discard bool   // discard freed pages on the disk at once
}

func (s SwapOn) String() string { return fmt.Sprintf("use volume %s (%s) as swap", s.Name, s.Disk) }

// SwapOff ends the use of a swap area. The kernel reads all its pages back into memory, and SwapOff
// fails if the memory is too small for them.
type SwapOff struct{ Name, Device string }

func (s SwapOff) String() string {
	return "end the use of volume " + s.Name + " (" + s.Device + ") as swap"
}

// SetZswap sets the percentage of the memory that zswap may use for compressed pages; 0 turns zswap
// off.
type SetZswap struct{ Percent int }

func (s SetZswap) String() string {
	if s.Percent == 0 {
		return "turn zswap off"
	}
	return fmt.Sprintf("turn zswap on, with %d %% of the memory", s.Percent)
}

// Check runs e2fsck, which replays the journal and makes the repairs that need no confirmation.
type Check struct {
	Name   string
	Device string
	run    mkfs.Runner
}

func (c Check) String() string { return "check volume " + c.Name + " (" + c.Device + ")" }

// Dir is a directory that Mount creates in a volume.
type Dir struct {
	Name string // relative to the root of the volume
	Mode uint32
}

// Mount mounts a volume below paths.VolumeMounts and creates its directories.
type Mount struct {
	Name   string
	Disk   string
	Device string // of the partition
	Flags  mount.Flags
	Data   string
	Dirs   []Dir
}

func (m Mount) String() string {
	options := m.Flags.String()
	if m.Data != "" {
		options += "," + m.Data
	}
	return fmt.Sprintf("mount volume %s (%s) at %s (%s)", m.Name, m.Disk, root(m.Name), options)
}

// GrowFilesystem grows the file system of a mounted volume to the size of its partition.
type GrowFilesystem struct {
	Name   string
	Target string
	Size   uint64 // of the partition, bytes
}

func (g GrowFilesystem) String() string {
	return fmt.Sprintf("grow the file system of volume %s to %s", g.Name, layout.FormatSize(g.Size))
}

// Move copies a directory of DATA to a volume, compares the copy, and renames the original out of
// the way. At any time, the original or the copy is complete.
type Move struct {
	Name     string
	From, To string
	// If Directory is true, an empty directory replaces the original; otherwise the path does not
	// exist after the move.
	Directory bool
}

func (m Move) String() string { return fmt.Sprintf("move %s to volume %s", m.From, m.Name) }

// RemoveMoved removes the renamed original after a Move.
type RemoveMoved struct{ Path string }

func (r RemoveMoved) String() string { return "remove the rest of " + r.Path + ", which has moved" }

// Link replaces an empty directory of DATA by a symbolic link.
type Link struct{ Path, Target string }

func (l Link) String() string { return fmt.Sprintf("link %s to %s", l.Path, l.Target) }

// Bind mounts a directory of a volume over a directory of DATA.
type Bind struct {
	From, To string
	Flags    mount.Flags
}

func (b Bind) String() string { return fmt.Sprintf("mount %s over %s", b.From, b.To) }

// Unlink removes a symbolic link.
type Unlink struct{ Path string }

func (u Unlink) String() string { return "remove the link " + u.Path }

// Detach removes the mount of a disconnected device, because the disk is connected again under
// another name. Files that programs have open in the old mount stay unusable.
type Detach struct{ Name, Source string }

func (d Detach) String() string {
	return "detach volume " + d.Name + " from " + d.Source + ", which was disconnected"
}

// Unmount unmounts a volume. Pods in which the volume is mounted keep their mounts until they end.
type Unmount struct{ Name, Target string }

func (u Unmount) String() string { return "unmount volume " + u.Name + " (" + u.Target + ")" }
