package disk

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/vpd"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
)

// growStep is the minimum growth of DATA, in bytes. A file system or partition that is smaller than
// the available space by less than growStep is not grown.
const growStep = 16 << 20

// Config is the disk configuration. The zero value suits most machines.
type Config struct {
	// Disk selects the disk for STATE and DATA by path, serial number or WWID. Empty selects the
	// boot disk.
	Disk string
	// Wipe permits the removal of foreign content from that disk: a foreign partition table, the
	// foreign partitions if the space is too small otherwise, and foreign file systems in STATE and
	// DATA.
	Wipe bool
	// Recipients are the public keys (age) to which the recovery keys of new volumes are encrypted.
	// If there are any, STATE and DATA are encrypted when the machine formats them.
	Recipients []string
	// Undecided is the reason why it is not known whether the volumes must be encrypted; empty if
	// it is known. The machine then formats no volume.
	Undecided string
}

// Plan chooses the disk, the positions of STATE and DATA and their formats, or returns why it
// cannot. It changes nothing, and it is the only place that makes these choices.
func Plan(config Config, have Have) (Want, error) {
	disk, err := choose(config.Disk, have.Disks)
	if err != nil {
		return Want{}, err
	}
	if disk.ReadOnly {
		return Want{}, fmt.Errorf("%s: cannot hold %s and %s: the disk is read-only", describe(disk), layout.State, layout.Data)
	}
	if err := checkClones(disk, have); err != nil {
		return Want{}, err
	}
	want := Want{Disk: disk.Path}
	kept := disk.Partitions
	if reason := foreignTable(disk); reason != "" {
		if !config.Wipe || disk.Boot {
			return Want{}, foreignError(disk, reason)
		}
		want.NewTable, kept = true, nil
	}
	if disk.Table.Kind == "" {
		want.NewTable = true
	}
	if want.Partitions, err = arrange(config, disk, kept); err != nil {
		return Want{}, err
	}
	encrypted := false // STATE, which is the first volume
	for _, v := range systemVolumes() {
		entry := find(want.Partitions, v.Format.Label)
		v.Number = entry.Number
		v.Wipe = config.Wipe
		v.Partition = parttable.PartitionPath(disk.Path, entry.Number)
		v.encrypt(config, kept, encrypted)
		encrypted = v.Encrypt
		v.Format.Device = v.device()
		v.Mount.Source = v.Format.Device
		want.Volumes = append(want.Volumes, v)
		if err := checkVolume(v, config, kept, have.Mounts); err != nil {
			return Want{}, err
		}
	}
	return want, nil
}

// systemVolumes returns the formats and mount points of the two file systems.
func systemVolumes() []Volume {
	return []Volume{
		{
			Format: Format{Label: layout.State, ReservedPercent: 0},
			Mount:  mount.Mount{Target: paths.State, Type: "ext4", Flags: mount.NoSuid | mount.NoDev | mount.NoExec | mount.NoAtime},
		},
		{
			// The last percent is reserved for root, so that the system can clean up a full disk.
			// The project quotas are for the PersistentVolumes, which are ext4 projects.
			Format: Format{Label: layout.Data, ReservedPercent: 1, Quotas: mkfs.ProjectQuotas},
			Mount:  mount.Mount{Target: paths.Data, Type: "ext4", Flags: mount.NoSuid | mount.NoDev | mount.NoAtime},
			Dirs:   dataDirs(),
			// "run" is /var/run. It points to /run, so the files in it do not survive a reboot. The
			// second link is the path at which containerd searches for the plugins of pod networks.
			Links: map[string]string{"run": "/run", rel(paths.HostOpt) + "/cni/bin": paths.ExternalCNIPlugins},
		},
	}
}

// dataDirs returns the shared parent directories on DATA, including the targets of the symbolic
// links of the root file system.
func dataDirs() []string {
	dirs := []string{"lib", "log"}
	for _, path := range []string{paths.HostOpt, paths.HostOpt + "/cni", paths.HostMnt, paths.HostSrv, paths.HostHome, paths.HostKubernetes} {
		dirs = append(dirs, rel(path))
	}
	return dirs
}

// rel returns a path on DATA relative to the mount point.
func rel(path string) string { return strings.TrimPrefix(path, paths.Data+"/") }

// choose returns the disk that matches the selector, or an error if none or several match. An empty
// selector matches the boot disk.
func choose(selector string, disks []Disk) (Disk, error) {
	if len(disks) == 0 {
		return Disk{}, errors.New("no disk found: connect one of at least 8 GiB, or use an image that holds its driver")
	}
	var found []Disk
	for _, d := range disks {
		if selector == "" && d.Boot || selector != "" && (d.Path == selector || d.Serial == selector || d.WWID == selector) {
			found = append(found, d)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var names []string
	for _, d := range disks {
		names = append(names, describe(d))
	}
	there := "disks found: " + strings.Join(names, ", ")
	switch {
	case len(found) > 1:
		return Disk{}, fmt.Errorf("disk %q: %d disks match; %s", selector, len(found), there)
	case selector == "":
		return Disk{}, errors.New("the boot disk is not visible; " + there)
	}
	return Disk{}, fmt.Errorf("disk %q: not found; %s", selector, there)
}

// checkClones rejects a system disk if a clone of the disk is present. init may have chosen the
// clone, because the right disk had not appeared yet. If STATE is mounted, checkClones accepts the
// disk, because a clone that is plugged in later has no effect until the next boot.
func checkClones(disk Disk, have Have) error {
	if _, mounted := mount.Topmost(have.Mounts, paths.State); mounted || !disk.Boot {
		return nil
	}
	i := slices.IndexFunc(disk.Partitions, func(p Partition) bool { return p.Label == layout.ESP })
	if i < 0 {
		return nil
	}
	esp := disk.Partitions[i].UUID
	for _, other := range have.Disks {
		if other.Path == disk.Path || vpd.SamePhysicalDisk(other.identity(), disk.identity()) {
			continue
		}
		if other.has(esp) && other.has(disk.Root) {
			return fmt.Errorf("%s: cannot tell the system disk: %s is a clone of it (both have partition %s); remove the clone and restart the machine",
				describe(disk), describe(other), esp)
		}
	}
	return nil
}

func (d Disk) identity() vpd.Identity {
	return vpd.Identity{WWID: d.WWID, Transport: d.Transport}
}

// has reports whether a partition has the GUID and the GUID is not zero.
func (d Disk) has(guid uuid.UUID) bool {
	return guid != uuid.Nil && slices.ContainsFunc(d.Partitions, func(p Partition) bool { return p.UUID == guid })
}

// foreignTable returns why the partition table of a disk is foreign; "" if it is an Orlop table or
// the disk is blank.
func foreignTable(disk Disk) string {
	switch disk.Table.Kind {
	case "":
		return ""
	case "gpt":
	default:
		return "it holds " + disk.Table.Kind + " instead of a GPT partition table"
	}
	if disk.Boot {
		return ""
	}
	for _, p := range disk.Partitions {
		if !isSystemPartition(p.Entry) {
			return fmt.Sprintf("it contains a foreign partition (%s)", name(p.Entry))
		}
	}
	return ""
}

// isSystemPartition reports whether the entry is a system partition.
func isSystemPartition(e Entry) bool { return layout.IsSystemPartition(e.Label, e.Type) }

// arrange assigns a position to every partition. kept contains the existing partitions that stay.
// They retain their number and start; only DATA may grow. New partitions go behind the last
// partition.
func arrange(config Config, disk Disk, kept []Partition) ([]Entry, error) {
	var entries []Entry
	for _, p := range kept {
		entries = append(entries, p.Entry)
	}
	for _, label := range []string{layout.State, layout.Data} {
		if same := withLabel(entries, label); len(same) > 1 {
			return nil, fmt.Errorf("%s: cannot use the disk: it has %d partitions labelled %s; remove the wrong one", describe(disk), len(same), label)
		}
	}
	state, data := find(entries, layout.State), find(entries, layout.Data)
	if state.Number == 0 && data.Number != 0 {
		return nil, fmt.Errorf("%s: cannot use the disk: it has %s, but %s is missing; restore the partition table, or install the image again", describe(disk), layout.Data, layout.State)
	}
	if data.Number == 0 {
		added, err := add(config, disk, entries, state.Number == 0)
		return added, err
	}
	for i, e := range entries {
		if e.Number != data.Number {
			continue
		}
		if room := roomBehind(disk, entries, e); room >= growStep {
			entries[i].Size += room
		}
	}
	return entries, nil
}

// add appends DATA, which takes the remaining space, and before it STATE if state is true. If the
// space is too small and config.Wipe permits it, add first removes the foreign partitions.
func add(config Config, disk Disk, entries []Entry, state bool) ([]Entry, error) {
	need := uint64(layout.MinimumData)
	if state {
		need += layout.StateSize
	}
	fits := func(entries []Entry) (start, free uint64) {
		start = disk.align(disk.First)
		for _, e := range entries {
			start = max(start, disk.align(e.end()))
		}
		if end := disk.End / disk.Alignment * disk.Alignment; end > start {
			free = end - start
		}
		return start, free
	}
	start, free := fits(entries)
	if free < need {
		foreign := slices.IndexFunc(entries, func(e Entry) bool { return !isSystemPartition(e) })
		if foreign >= 0 && !config.Wipe {
			return nil, foreignError(disk, "the unknown "+name(entries[foreign])+" is in the way")
		}
		entries = slices.DeleteFunc(entries, func(e Entry) bool { return !isSystemPartition(e) })
		start, free = fits(entries)
	}
	if free < need {
		return nil, fmt.Errorf("%s: too small: %s and %s need %s, %s are free behind the last partition; use a disk of at least %s",
			describe(disk), layout.State, layout.Data, layout.FormatSize(need), layout.FormatSize(free), layout.FormatSize(disk.Size-free+need+1<<30/10-1))
	}
	next := 1
	for _, e := range entries {
		next = max(next, e.Number+1)
	}
	if state {
		if behind, gap := gapFor(disk, entries, layout.StateSize, free); gap > 0 {
			return nil, gapError(disk, layout.State, behind, gap)
		}
		entries = append(entries, Entry{Number: next, Label: layout.State, Type: layout.TypeState, Start: start, Size: layout.StateSize})
		next, start, free = next+1, start+layout.StateSize, free-layout.StateSize
	}
	if behind, gap := gapFor(disk, entries, free, free); gap > 0 {
		return nil, gapError(disk, layout.Data, behind, gap)
	}
	return append(entries, Entry{Number: next, Label: layout.Data, Type: layout.TypeData, Start: start, Size: free}), nil
}

// gapFor finds a gap between partitions into which the library that writes the table would put a
// new partition of size bytes. The library uses a gap if the partition fits, and if the gap is no
// larger than free, the space behind the last partition. It would then renumber the partitions
// behind the gap. gapFor returns the partition behind the gap and the size of the gap; size 0 means
// that there is no such gap.
func gapFor(disk Disk, entries []Entry, size, free uint64) (behind Entry, gap uint64) {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return cmp.Compare(a.Start, b.Start) })
	at := disk.align(disk.First)
	for _, e := range sorted {
		if e.Start >= at+size && e.Start-at <= free {
			return e, e.Start - at
		}
		at = max(at, disk.align(e.end()))
	}
	return Entry{}, 0
}

// gapError returns the error for a table with a gap that would receive a new partition.
func gapError(disk Disk, label string, behind Entry, gap uint64) error {
	return fmt.Errorf("%s: cannot make %s: the partition table has a gap of %s before %s; a new partition there would take its number, and the partitions behind the gap "+
		"would get new names; nothing was changed; remove %s, or move it to the gap's beginning", describe(disk), label, layout.FormatSize(gap), name(behind), name(behind))
}

// roomBehind returns the free space behind a partition, in whole units of the disk's alignment.
func roomBehind(disk Disk, entries []Entry, e Entry) uint64 {
	limit := disk.End
	for _, other := range entries {
		if other.Start >= e.end() {
			limit = min(limit, other.Start)
		}
	}
	limit = limit / disk.Alignment * disk.Alignment
	if start := disk.align(e.end()); limit > start {
		return limit - start
	}
	return 0
}

// checkVolume rejects a volume if its partition has foreign content or another device is mounted at
// its mount point.
func checkVolume(v Volume, config Config, kept []Partition, mounts []mount.Mount) error {
	if m, ok := mount.Topmost(mounts, v.Mount.Target); ok && m.Source != v.Mount.Source {
		return fmt.Errorf("%s: cannot mount %s here: %s (%s) is mounted already", v.Mount.Target, v.Format.Label, m.Source, m.Type)
	}
	for _, p := range kept {
		switch {
		case p.Number != v.Number:
		case v.holds(p):
			return nil
		case config.Undecided == "" && v.interrupted(p):
			return fmt.Errorf("%s: refusing to format %s: its first format was encrypted and was interrupted, and the image requests no encryption; nothing was changed. "+
				"Apply the configuration again, with spec.disk.wipeForeign, or reset the machine", p.Path, v.Format.Label)
		case p.locked(), v.named(p) && p.Encryption != nil:
			return v.otherState(p)
		case !p.Content.blank() && !v.Wipe && v.named(p):
			return fmt.Errorf("%s: refusing to use %s: it is not encrypted, and %s is or would be, so it is not the one of this machine; nothing was changed (spec.disk.wipeForeign permits wiping it)",
				p.Path, v.Format.Label, layout.State)
		case !p.Content.blank() && !v.Wipe:
			return fmt.Errorf("%s: refusing to format %s: it has foreign content: %s; nothing was changed (spec.disk.wipeForeign permits wiping it)",
				p.Path, v.Format.Label, p.Content)
		}
	}
	if config.Undecided != "" && v.Format.Label == layout.State {
		return fmt.Errorf("%s: refusing to format %s: it is not known whether it must be encrypted: %s", v.Partition, v.Format.Label, config.Undecided)
	}
	return nil
}

// named reports whether the partition has a file system with the label of the volume, also if it is
// encrypted and locked.
func (v Volume) named(p Partition) bool {
	return (p.Content.Kind == "ext4" || p.Content.Kind == lockedKind) && p.Content.Label == v.Format.Label
}

// holds reports whether the content is the volume's own file system: encrypted or not, as STATE is.
func (v Volume) holds(p Partition) bool { return v.named(p) && v.Encrypt == (p.Encryption != nil) }

// foreignError returns the error for foreign content.
func foreignError(disk Disk, reason string) error {
	return fmt.Errorf("%s: refusing to use the disk: %s; nothing was changed (spec.disk.wipeForeign permits wiping foreign content)", describe(disk), reason)
}

// describe names a disk for the operator: "/dev/vda (8 GiB, QEMU HARDDISK)".
func describe(d Disk) string {
	s := d.Path + " (" + layout.FormatSize(d.Size)
	if d.Model != "" {
		s += ", " + d.Model
	}
	return s + ")"
}

// name is "partition 4 "Linux" (5 GiB)".
func name(e Entry) string {
	return fmt.Sprintf("partition %d %q (%s)", e.Number, e.Label, layout.FormatSize(e.Size))
}

// withLabel returns the system partitions with a label.
func withLabel(entries []Entry, label string) []Entry {
	var found []Entry
	for _, e := range entries {
		if e.Label == label && isSystemPartition(e) {
			found = append(found, e)
		}
	}
	return found
}

// find returns the first system partition with a label; the zero Entry if there is none.
func find(entries []Entry, label string) Entry {
	if found := withLabel(entries, label); len(found) > 0 {
		return found[0]
	}
	return Entry{}
}
