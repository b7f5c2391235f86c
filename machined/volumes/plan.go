package volumes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/volumes/swap"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/vpd"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
)

const (
	ext4     = "ext4"
	swapArea = "swap"
	// unknownData is the kind of content that is not blank and has no known signature
	// (superblock.UnknownData).
	unknownData = "unknown data"
	// growStep is the smallest growth of a partition and of its file system, in bytes.
	growStep = 16 << 20
	// least is the smallest size of a partition, in bytes.
	least = 256 << 20
)

// Plan selects the disk and the partition of each volume, or returns in Planned.Problem why it has
// none. No other function makes these choices. Plan changes nothing. guid returns a new random
// GUID.
func Plan(c Config, have Have, guid func() uuid.UUID) Want {
	p := planner{have: have, guid: guid, taken: map[string][]Partition{}}
	var want Want
	// Volumes of a fixed size come first, because a volume without a size gets the space that they
	// leave.
	ordered := slices.SortedStableFunc(slices.Values(c.Volumes), func(a, b Volume) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	for _, v := range ordered {
		want.Volumes = append(want.Volumes, p.volume(v))
	}
	for _, r := range have.Records {
		if slices.ContainsFunc(c.Volumes, func(v Volume) bool { return v.Name == r.Name }) {
			continue
		}
		gone := Planned{Volume: Volume{Name: r.Name, Use: r.Use}, Record: r, Recorded: true, Mounted: mountedAt(have.Mounts, root(r.Name))}
		if r.Use == config.UseSwap {
			if found, _ := p.find(r); found != nil {
				gone.Partition, gone.Mounted = found.partition, have.swapsTo(found.partition.Path)
			} else if len(have.Areas) > 0 {
				gone.Problem = "its document was removed, but swap is in use, and its disk is not found" + unexamined(have.Disks) + "; connect it, or reboot the machine"
			}
		}
		if r.Use.IsPart() && r.Placed {
			gone.Problem = fmt.Sprintf("its document was removed, but %s is on it: add the document again, or reset the machine", r.Use)
		}
		want.Volumes = append(want.Volumes, gone)
	}
	return want
}

func rank(v Volume) int {
	if v.Size == 0 {
		return 1
	}
	return 0
}

// planner has the input of a plan, and the partitions planned so far.
type planner struct {
	have Have
	guid func() uuid.UUID
	// taken has the planned partitions of each disk, by the path of the disk
	taken map[string][]Partition
}

// volume returns the plan of a volume with a document.
func (p *planner) volume(v Volume) Planned {
	out := Planned{Volume: v, Document: true, Mounted: mountedAt(p.have.Mounts, root(v.Name))}
	out.Record, out.Recorded = recordOf(p.have.Records, v.Name)
	if out.Recorded && out.Record.Use != v.Use {
		out.Problem = fmt.Sprintf("it was created for the use %s, which cannot change to %s; choose another name, or wipe it (`orlopctl disk wipe --volume %s`)", out.Record.Use, v.Use, v.Name)
		return out
	}
	if out.Problem, out.OnData = p.blockedPlaces(v); out.Problem != "" {
		return out
	}
	if out.Recorded {
		found, why := p.find(out.Record)
		if why != "" {
			out.Problem = why
			return out
		}
		if found != nil {
			out.Disk, out.Partition = found.disk, found.partition
			p.existing(&out)
			return out
		}
	} else {
		out.Record = Record{Name: v.Name, Use: v.Use, Partition: p.guid(), Filesystem: p.guid()}
	}
	p.create(&out)
	return out
}

func (d Disk) identity() vpd.Identity {
	return vpd.Identity{WWID: d.WWID, Transport: d.Transport}
}

// location is a partition on a disk.
type location struct {
	disk      Disk
	partition Partition
}

// find returns the partition of a record. If the partition cannot be used, it returns nil and the
// reason. If the partition does not exist yet, it returns nil and "".
func (p *planner) find(r Record) (*location, string) {
	var found []location
	for _, d := range p.have.Disks {
		if slices.ContainsFunc(found, func(l location) bool { return vpd.SamePhysicalDisk(l.disk.identity(), d.identity()) }) {
			continue
		}
		for _, part := range d.Partitions {
			if !d.Boot && part.UUID == r.Partition {
				found = append(found, location{d, part})
			}
		}
	}
	switch {
	case len(found) > 1:
		return nil, fmt.Sprintf("ambiguous: %s and %s both have its partition %s, so one is a copy; disconnect the copy", found[0].disk, found[1].disk, r.Partition)
	case len(found) == 1:
		return &found[0], ""
	case r.Complete:
		return nil, fmt.Sprintf("its disk is missing: %s; connect it again%s; if its data are lost, `orlopctl disk wipe --volume %s` gives them up", r.Disk, unexamined(p.have.Disks), r.Name)
	}
	return nil, ""
}

// unexamined returns a text with the disks that are not examined yet, because a missing volume may
// be on one of them. It returns "" if all disks are examined.
func unexamined(disks []Disk) string {
	var names []string
	for _, d := range disks {
		if strings.HasPrefix(d.Table, "content that ") {
			names = append(names, d.Path)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (not examined yet: " + strings.Join(names, ", ") + ")"
}

// existing plans a volume with an existing partition.
func (p *planner) existing(out *Planned) {
	c, kind := out.Partition.Content, out.content()
	if out.Use == config.UseSwap {
		out.Mounted = p.have.swapsTo(out.Partition.Path)
	}
	mismatches := diskmatch.IdentityMismatches(out.Volume.Disk, out.Disk.Disk)
	switch {
	case len(mismatches) > 0:
		out.Problem = fmt.Sprintf("its partition is on %s, which the selector does not match (%s): this may be a copy; connect the original, or correct the selector", out.Disk, strings.Join(mismatches, "; "))
		return
	case c.Kind == kind && c.UUID == out.Record.Filesystem:
	case mountedFrom(p.have.Mounts, out.Partition.Path), out.Use == config.UseSwap && out.Mounted:
		// the partition is in use: the content that was read can be older than its format
	case !out.Record.Complete && (c.Kind == "" || c.Kind == unknownData || c.Kind == ext4 && c.UUID == out.Record.Discard):
		// the partition is not formatted completely, or a reset requests a new file system
	case c.Kind == "":
		out.Problem = fmt.Sprintf("its %s on %s is gone: the partition is blank; %s", contentName(kind), out.Partition.Path, giveUp(out.Name))
		return
	default:
		out.Problem = fmt.Sprintf("%s has another content than its %s: %s; %s", out.Partition.Path, contentName(kind), c.Kind, giveUp(out.Name))
		return
	}
	out.Usable = true
	if out.Swap.ZswapPercent > 0 && p.have.Zswap.Missing {
		out.Problem = noZswap
	}
	size := out.Partition.Size
	switch room := p.roomBehind(out.Disk, out.Partition); {
	case out.Size == 0 && room >= growStep:
		out.Grow = size + room
	case out.Size > size && out.Size-size <= room:
		out.Grow = out.Size
	case out.Size > size:
		out.Problem = fmt.Sprintf("it has %s and cannot grow to %s: %s of space follow on %s", layout.FormatSize(size), layout.FormatSize(out.Size), layout.FormatSize(room), out.Disk)
	case out.Size != 0 && out.Size < size:
		out.Problem = fmt.Sprintf("it has %s, and volumes do not shrink to %s; set its size to the present size", layout.FormatSize(size), layout.FormatSize(out.Size))
	}
}

// noZswap is the remark on a volume that configures zswap, if the kernel has no zswap.
const noZswap = "the kernel of this image has no zswap: swap is used without it; set zswapPercent to 0"

// contentName returns the name of a kind of content for operators.
func contentName(kind string) string {
	if kind == ext4 {
		return "file system"
	}
	return kind
}

func giveUp(name string) string {
	return fmt.Sprintf("if its data are lost, `orlopctl disk wipe --volume %s` gives them up", name)
}

// create plans the partition of a new volume.
func (p *planner) create(out *Planned) {
	d, why := p.choose(out.Volume)
	if why != "" {
		out.Problem = why
		return
	}
	free := p.largestGap(d)
	need := max(out.Size, least)
	if free < need {
		out.Problem = fmt.Sprintf("%s has room for %s, and %s are needed", d, layout.FormatSize(free), layout.FormatSize(need))
		return
	}
	out.Disk, out.Usable = d, true
	out.NewTable = d.Table == "" && len(p.taken[d.Path]) == 0
	out.Record.Disk = d.String()
	size := out.Size
	if size == 0 {
		size = free
	}
	p.take(d, size)
}

// choose returns the disk for a new volume. If not exactly one disk matches, or the disk has data,
// choose returns the reason.
func (p *planner) choose(v Volume) (Disk, string) {
	var found []Disk
	var lines []string
	for _, d := range p.have.Disks {
		var reasons []string
		if d.Boot {
			reasons = append(reasons, "it is the system disk")
		}
		if d.ReadOnly {
			reasons = append(reasons, "it is read-only")
		}
		matches, evaluated := p.have.Matches[v.Name]
		if v.Disk.Match != "" && !evaluated {
			reasons = append(reasons, "match: the expression has not been evaluated")
		}
		reasons = append(reasons, diskmatch.Mismatches(v.Disk, d.Disk, matches)...)
		if len(reasons) == 0 {
			found, reasons = append(found, d), []string{"matches"}
		}
		lines = append(lines, d.String()+": "+strings.Join(reasons, "; "))
	}
	switch {
	case len(found) > 1:
		return Disk{}, fmt.Sprintf("ambiguous: %d disks match instead of exactly one; add more criteria to its disk: %s", len(found), strings.Join(lines, ", "))
	case len(found) == 0:
		return Disk{}, "no disk matches: " + cmp.Or(strings.Join(lines, ", "), "the machine has none")
	}
	if why := p.foreign(found[0]); why != "" {
		return Disk{}, fmt.Sprintf("%s has data: %s; only a blank disk is used: choose another one, or wipe it (`orlopctl disk wipe %s`)", found[0], why, stableName(found[0]))
	}
	return found[0], ""
}

// stableName returns a name of the disk for orlopctl: the serial number or the WWID if the disk has
// a usable one, otherwise the path.
func stableName(d Disk) string {
	for _, n := range []string{d.Serial, d.WWID} {
		if n != "" && !strings.ContainsAny(n, " \"'`") {
			return n
		}
	}
	return d.Path
}

// foreign returns a description of foreign content on a disk. It returns "" if the disk is blank or
// has only recorded partitions.
func (p *planner) foreign(d Disk) string {
	if d.Table == "" {
		return ""
	}
	if d.Table != "gpt" {
		return d.Table
	}
	if len(d.Partitions) == 0 {
		return "an empty GPT partition table"
	}
	for _, part := range d.Partitions {
		if !slices.ContainsFunc(p.have.Records, func(r Record) bool { return r.Partition == part.UUID }) {
			return fmt.Sprintf("partition %s %q (%s, %s)", part.Path, part.Label, layout.FormatSize(part.Size), cmp.Or(part.Content.Kind, "blank"))
		}
	}
	return ""
}

// gap is free space on a disk, in bytes.
type gap struct{ start, size uint64 }

// gaps returns the free space between the present and planned partitions of a disk, sorted by
// position.
func (p *planner) gaps(d Disk) (all []gap) {
	used := slices.Concat(d.Partitions, p.taken[d.Path])
	slices.SortFunc(used, func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) })
	at := align(d.First, d.Alignment)
	for _, part := range append(used, Partition{Start: d.End / d.Alignment * d.Alignment}) {
		if part.Start > at {
			all = append(all, gap{at, part.Start - at})
		}
		at = max(at, align(part.Start+part.Size, d.Alignment))
	}
	return all
}

func align(offset, to uint64) uint64 { return (offset + to - 1) / to * to }

func (p *planner) largestGap(d Disk) (most uint64) {
	for _, g := range p.gaps(d) {
		most = max(most, g.size)
	}
	return most
}

// take plans a partition. It selects the smallest gap with enough space, like the library that
// writes the partition table.
func (p *planner) take(d Disk, size uint64) {
	var best gap
	for _, g := range p.gaps(d) {
		if g.size >= size && (best.size == 0 || g.size < best.size) {
			best = g
		}
	}
	p.taken[d.Path] = append(p.taken[d.Path], Partition{Start: best.start, Size: size})
}

// roomBehind returns the free space behind a partition, up to the next present or planned
// partition. The result is in bytes, rounded down to the alignment.
func (p *planner) roomBehind(d Disk, part Partition) uint64 {
	limit := d.End
	for _, o := range slices.Concat(d.Partitions, p.taken[d.Path]) {
		if o.Start >= part.Start+part.Size {
			limit = min(limit, o.Start)
		}
	}
	limit = limit / d.Alignment * d.Alignment
	if start := align(part.Start+part.Size, d.Alignment); limit > start {
		return limit - start
	}
	return 0
}

// blockedPlaces returns the reason for which a directory on DATA cannot be replaced by the volume;
// "" if it can be, or already is. onData is true if the volume is blocked because the data that it
// would hold are still on DATA.
func (p *planner) blockedPlaces(v Volume) (why string, onData bool) {
	r, _ := recordOf(p.have.Records, v.Name)
	for _, at := range places(v) {
		have, known := p.have.Places[at.path]
		switch {
		case at.bind && (r.Placed || mountedAt(p.have.Mounts, at.path)), have.Link == target(v.Name, at):
		case !known:
			return at.path + " has not been read", false
		case have.Link != "":
			return fmt.Sprintf("%s leads to %s: another volume had this use; wipe that volume first", at.path, have.Link), false
		// PersistentVolumes do not move, because a copy of the files would lose the quotas that
		// limit the size of each volume
		case !have.Empty && v.Use == config.UseVolumes:
			return fmt.Sprintf("PersistentVolumes are on DATA already (%s), and are not moved: `orlopctl reset --wipe data` drops them, and then the volume is used", at.path), true
		case !have.Empty && v.Use.IsPart() && p.have.Busy:
			return fmt.Sprintf("%s is on DATA (%s), and moves to the volume at the next boot (`orlopctl reboot`)", v.Use, at.path), true
		case !have.Empty && v.Use.IsPart(): // the data move to the volume
		case !have.Empty:
			return fmt.Sprintf("%s is a directory of DATA with files; move them away with a pod", at.path), true
		}
	}
	return "", false
}

// target returns the directory of a volume that replaces a place.
func target(name string, at place) string { return root(name) + "/" + at.dir }

func mountedAt(mounts []mount.Mount, target string) bool {
	_, mounted := mount.Topmost(mounts, target)
	return mounted
}

// present reports whether one of the disks has a partition with this path.
func present(disks []Disk, path string) bool {
	return slices.ContainsFunc(disks, func(d Disk) bool {
		return slices.ContainsFunc(d.Partitions, func(p Partition) bool { return p.Path == path })
	})
}

// swapsTo reports whether a partition is in use as swap.
func (h Have) swapsTo(device string) bool {
	return slices.ContainsFunc(h.Areas, func(a swap.Area) bool { return device != "" && a.Path == device })
}

func mountedFrom(mounts []mount.Mount, device string) bool {
	return device != "" && slices.ContainsFunc(mounts, func(m mount.Mount) bool { return m.Source == device })
}

// Missing returns one line for each volume with one of these uses that cannot be used at present,
// with the reason; nil if all can be used. A mounted volume counts as usable even if its disk was
// disconnected, because services have its files open.
func (w Want) Missing(uses ...config.VolumeUse) (lines []string) {
	for _, v := range w.Volumes {
		if slices.Contains(uses, v.Use) && v.Problem != "" && !v.Usable && !v.Mounted && !v.OnData && (v.Document || v.Record.Placed) {
			lines = append(lines, v.Name+": "+v.Problem)
		}
	}
	return lines
}
