package install

import (
	"context"
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Plan chooses the disk and checks that the system fits, or returns why it cannot be installed. It
// changes nothing, and it is the only place that makes these choices.
func Plan(c Config, f Facts) (Want, error) {
	d, others, err := choose(c, f)
	if err != nil {
		return Want{}, err
	}
	if err := checkContent(d, c); err != nil {
		return Want{}, err
	}
	s := f.System
	if s.RootSize > int64(s.Sizes.Root) {
		return Want{}, fmt.Errorf("the system's root has %d MiB, its partition would have %d MiB: the image was built wrong", s.RootSize>>20, s.Sizes.Root>>20)
	}
	if 2*s.UKISize > int64(s.Sizes.ESP) { // space for two versions
		return Want{}, fmt.Errorf("the boot image has %d MiB, the ESP would have %d MiB: the image was built wrong", s.UKISize>>20, s.Sizes.ESP>>20)
	}
	return Want{Disk: d, Others: others, System: s}, nil
}

// Print returns the output of a dry run: the disk, the reasons against the others, and the
// operations.
func Print(w Want) []string {
	lines := []string{"onto " + w.Disk.String()}
	for _, o := range w.Others {
		lines = append(lines, "not onto "+o)
	}
	return append(lines, reconcile.Print(Operations(w, Tools{}))...)
}

// File is a file for the STATE of the installed system.
type File struct {
	Name    string // below paths.State
	Content []byte
}

// Tools are the dependencies of the operations. The zero value is enough to print them.
type Tools struct {
	Run     mkfs.Runner
	Modules func(names ...string) error // loads the modules for mounts
	// receives the progress of the current operation; may be nil
	Report func(bytes, of int64)
	Files  []File // files for STATE, in this order
}

// Operations returns the operations of an installation, in the only order that survives a power
// cut. They do not depend on the state of the disk: an interrupted installation is repeated from
// the beginning.
func Operations(w Want, t Tools) []reconcile.Op {
	if t.Report == nil {
		t.Report = func(int64, int64) {}
	}
	device := map[string]string{}
	number := map[string]int{}
	for i, p := range layout.Installed(w.System.Sizes) {
		device[p.Label], number[p.Label] = parttable.PartitionPath(w.Disk.Path, i+1), i+1
	}
	boot := &esp.Partition{Device: func() (string, error) { return device[layout.ESP], nil }, Target: paths.ESP, Modules: t.Modules}
	return []reconcile.Op{
		CreatePartitionTable{Disk: w.Disk.Path, Partitions: layout.Installed(w.System.Sizes)},
		WriteRoot{Version: w.System.Version, Device: device[layout.RootA], Size: w.System.RootSize, report: t.Report},
		ReadBack{Device: device[layout.RootA], Root: w.System.Root},
		SetRootGUID{Disk: w.Disk.Path, Number: number[layout.RootA], Root: w.System.Root},
		FormatState{Device: device[layout.State], run: t.Run},
		WriteState{Device: device[layout.State], files: t.Files},
		FormatESP{Device: device[layout.ESP], run: t.Run},
		AddBootEntry{Version: w.System.Version, Device: device[layout.ESP], boot: boot},
		WriteLoader{Device: device[layout.ESP], boot: boot},
	}
}

// CreatePartitionTable replaces the partition table and discards the content of the disk.
type CreatePartitionTable struct {
	Disk       string
	Partitions []layout.Partition
}

func (d CreatePartitionTable) String() string {
	var parts []string
	for i, p := range d.Partitions {
		parts = append(parts, fmt.Sprintf("%d %s (%s)", i+1, p.Label, layout.FormatSize(p.Size)))
	}
	return "partition " + d.Disk + ": new table, " + strings.Join(parts, ", ")
}

// WriteRoot copies the root and its hash tree.
type WriteRoot struct {
	Version string
	Device  string
	Size    int64 // bytes
	report  func(bytes, of int64)
}

func (w WriteRoot) String() string {
	return fmt.Sprintf("write version %s to %s (%s), %d MiB", w.Version, layout.RootA, w.Device, w.Size>>20)
}

// ReadBack reads every block and checks it against the root hash.
type ReadBack struct {
	Device string
	Root   verity.Params
}

func (r ReadBack) String() string { return "read it back (" + r.Device + ")" }

// Do reads the whole root.
func (r ReadBack) Do(context.Context) error { return verity.Verify(r.Device, r.Root) }

// SetRootGUID sets the GUID by which the boot image finds its root partition
// (docs/decisions/0002-slot-by-root-hash.md).
type SetRootGUID struct {
	Disk   string
	Number int
	Root   verity.Params
}

func (n SetRootGUID) String() string { return "set the partition GUID from its root hash" }

// Do writes the table if the partition has another GUID.
func (n SetRootGUID) Do(context.Context) error {
	return parttable.SetGUID(n.Disk, n.Number, layout.RootA, n.Root.PartUUID())
}

// FormatState creates the file system of STATE.
type FormatState struct {
	Device string
	run    mkfs.Runner
}

func (f FormatState) String() string {
	return "format " + layout.State + " (" + f.Device + ") as ext4"
}

// Do creates the file system in the same way as machined/disk.
func (f FormatState) Do(ctx context.Context) error {
	return mkfs.Ext4(ctx, f.run, f.Device, mkfs.Ext4Options{Label: layout.State})
}

// WriteState writes the files for the STATE of the installed system.
type WriteState struct {
	Device string
	files  []File
}

func (k WriteState) String() string {
	return "store the configuration and the machine's key on " + layout.State + " (" + k.Device + ")"
}

// FormatESP creates the file system that the firmware reads.
type FormatESP struct {
	Device string
	run    mkfs.Runner
}

func (f FormatESP) String() string {
	return "format " + layout.ESP + " (" + f.Device + ") as FAT32"
}

// Do creates an empty file system.
func (f FormatESP) Do(ctx context.Context) error {
	return mkfs.FAT32(ctx, f.run, f.Device, layout.ESP)
}

// AddBootEntry writes the boot image.
type AddBootEntry struct {
	Version string
	Device  string
	boot    *esp.Partition
}

func (e AddBootEntry) String() string {
	return "add the boot entry of version " + e.Version + " (" + e.Device + ")"
}

// WriteLoader writes the boot loader: from then on the firmware boots this disk.
type WriteLoader struct {
	Device string
	boot   *esp.Partition
}

func (l WriteLoader) String() string { return "write the boot loader (" + l.Device + ")" }
