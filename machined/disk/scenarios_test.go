package disk

import (
	"slices"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

const mib = 1 << 20

// typeLinux is a foreign partition type.
var typeLinux = uuid.MustParse("0fc63daf-8483-4772-8e79-3d69d8477de4")

// scenario is the state of a disk. The same scenarios run on a model (laws_test.go) and, under the
// product kernel, on a real disk (disk_linux_test.go). Both tests use the same golden files.
type scenario struct {
	name   string
	config Config
	disk   diskSpec
	mount  bool // STATE and DATA are already mounted
}

// diskSpec describes a disk of diskSize. Partitions are numbered from 1, in the order of their
// position.
type diskSpec struct {
	absent     bool   // no disk at all
	table      string // "gpt", "", "an MBR partition table"
	tableSize  uint64 // the disk size that the table was made for, MiB; 0: the real size
	torn       bool   // the primary table is broken, the backup is valid
	data       bool   // not the boot disk
	shared     bool   // it has the GUIDs of its disk image
	partitions []partSpec
}

type partSpec struct {
	label   string
	kind    uuid.UUID
	size    uint64 // MiB
	content Content
	behind  bool // blank by its signature, but not empty: a format was interrupted
	// encryption is set for an encrypted partition. The scenarios with such partitions run on the
	// model only; encryption_linux_test.go makes them on a real disk.
	encryption *Encryption
}

// diskSize is the disk size of every scenario, in MiB: the size in the kernel tests of package vm.
const diskSize = 2048

var image = []partSpec{
	{label: layout.ESP, kind: layout.TypeESP, size: 64},
	{label: layout.RootA, kind: layout.TypeRoot, size: 64, content: Content{Kind: unknownData}},
	{label: layout.RootB, kind: layout.TypeRoot, size: 64},
}

func imageAnd(more ...partSpec) []partSpec { return append(slices.Clone(image), more...) }

func ext4(label string, size uint64) Content {
	return Content{Kind: "ext4", Label: label, Size: size * mib}
}

var (
	state     = partSpec{label: layout.State, kind: layout.TypeState, size: 256, content: ext4(layout.State, 256)}
	data      = partSpec{label: layout.Data, kind: layout.TypeData, size: 1598, content: ext4(layout.Data, 1598)}
	smallData = partSpec{label: layout.Data, kind: layout.TypeData, size: 1100, content: ext4(layout.Data, 1100)}
	foreign   = partSpec{label: "linux", kind: typeLinux, size: 1000, content: ext4("linux", 1000)}
)

var scenarios = []scenario{
	{name: "first boot", disk: diskSpec{table: "gpt", tableSize: 200, partitions: image}},
	{name: "first boot, disk of the image's size", disk: diskSpec{table: "gpt", partitions: image}},
	{name: "first boot of a flashed image", disk: diskSpec{table: "gpt", tableSize: 200, shared: true, partitions: image}},
	{name: "later boot with the image's GUIDs", disk: diskSpec{table: "gpt", shared: true, partitions: imageAnd(state, data)}},
	{name: "mounted with the image's GUIDs", mount: true, disk: diskSpec{table: "gpt", shared: true, partitions: imageAnd(state, data)}},
	{name: "power cut in writing a table with the image's GUIDs", disk: diskSpec{table: "gpt", torn: true, shared: true, partitions: imageAnd(state, data)}},
	{name: "later boot", disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}},
	{name: "mounted", mount: true, disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}},
	{name: "disk has grown", disk: diskSpec{table: "gpt", tableSize: 1600, partitions: imageAnd(state, smallData)}},
	{name: "disk has grown, mounted", mount: true, disk: diskSpec{table: "gpt", tableSize: 1600, partitions: imageAnd(state, smallData)}},
	{name: "partition has grown, file system has not", disk: diskSpec{table: "gpt", partitions: imageAnd(state,
		but(data, func(p *partSpec) { p.content.Size = 1100 * mib }))}},
	{name: "power cut before formatting", disk: diskSpec{table: "gpt", partitions: imageAnd(
		but(state, func(p *partSpec) { p.content = Content{} }), but(data, func(p *partSpec) { p.content = Content{} }))}},
	{name: "power cut in formatting STATE", disk: diskSpec{table: "gpt", partitions: imageAnd(
		but(state, func(p *partSpec) { p.content = Content{}; p.behind = true }), but(data, func(p *partSpec) { p.content = Content{} }))}},
	{name: "power cut in formatting DATA", disk: diskSpec{table: "gpt", partitions: imageAnd(state,
		but(data, func(p *partSpec) { p.content = Content{}; p.behind = true }))}},
	{name: "power cut in writing the table", disk: diskSpec{table: "gpt", torn: true, partitions: imageAnd(state, data)}},
	{name: "DATA not created yet", disk: diskSpec{table: "gpt", partitions: imageAnd(state)}},
	{name: "no disk", disk: diskSpec{absent: true}},
	{name: "disk not found", config: Config{Disk: "WD-1234"}, disk: diskSpec{table: "gpt", partitions: image}},
	{name: "too small", disk: diskSpec{table: "gpt", partitions: []partSpec{
		{label: layout.ESP, kind: layout.TypeESP, size: 64}, {label: layout.RootA, kind: layout.TypeRoot, size: 512}, {label: layout.RootB, kind: layout.TypeRoot, size: 512}}}},
	{name: "unknown partition in the way", disk: diskSpec{table: "gpt", partitions: imageAnd(foreign)}},
	{name: "unknown partition in the way, wipe", config: Config{Wipe: true}, disk: diskSpec{table: "gpt", partitions: imageAnd(foreign)}},
	{name: "unknown partition with room behind it", disk: diskSpec{table: "gpt", partitions: imageAnd(but(foreign, func(p *partSpec) { p.size = 100; p.content = Content{} }))}},
	{name: "STATE with a foreign type", disk: diskSpec{table: "gpt", partitions: imageAnd(but(foreign, func(p *partSpec) { p.label = layout.State }))}},
	{name: "foreign file system in STATE", disk: diskSpec{table: "gpt", partitions: imageAnd(but(state, func(p *partSpec) { p.content = ext4("photos", 256) }), data)}},
	{name: "foreign file system in STATE, wipe", config: Config{Wipe: true}, disk: diskSpec{table: "gpt", partitions: imageAnd(but(state, func(p *partSpec) { p.content = ext4("photos", 256) }), data)}},
	{name: "unknown data in DATA", disk: diskSpec{table: "gpt", partitions: imageAnd(state, but(data, func(p *partSpec) { p.content = Content{Kind: unknownData} }))}},
	{name: "STATE missing, DATA present", disk: diskSpec{table: "gpt", partitions: imageAnd(data)}},
	{name: "two STATE", disk: diskSpec{table: "gpt", partitions: imageAnd(state, state)}},
	{name: "blank second disk", config: Config{Disk: "/dev/vda"}, disk: diskSpec{data: true}},
	{name: "second disk in use", config: Config{Disk: "/dev/vda"}, disk: diskSpec{data: true, table: "gpt", partitions: []partSpec{foreign}}},
	{name: "second disk in use, wipe", config: Config{Disk: "/dev/vda", Wipe: true}, disk: diskSpec{data: true, table: "gpt", partitions: []partSpec{foreign}}},
	{name: "second disk with MBR", config: Config{Disk: "/dev/vda"}, disk: diskSpec{data: true, table: "an MBR partition table"}},
	{name: "second disk with MBR, wipe", config: Config{Disk: "/dev/vda", Wipe: true}, disk: diskSpec{data: true, table: "an MBR partition table"}},
	{name: "second disk, later boot", config: Config{Disk: "/dev/vda"}, disk: diskSpec{data: true, table: "gpt", partitions: []partSpec{state,
		but(data, func(p *partSpec) { p.size, p.content.Size = 1790, 1790*mib })}}},
}

// encrypted are the scenarios with encrypted partitions.
var encrypted = []scenario{
	{name: "first boot, encrypted", config: Config{Recipients: []string{"age1example"}}, disk: diskSpec{table: "gpt", tableSize: 200, partitions: image}},
	{name: "later boot, encrypted", disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), locked(data))}},
	{name: "mounted, encrypted", mount: true, disk: diskSpec{table: "gpt", partitions: imageAnd(open(state), open(data))}},
	{name: "disk has grown, encrypted", disk: diskSpec{table: "gpt", tableSize: 1600, partitions: imageAnd(locked(state), locked(smallData))}},
	{name: "power cut in the first format, encrypted", config: Config{Recipients: []string{"age1example"}},
		disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), unfinished(data))}},
	{name: "power cut in the first format of STATE, encrypted", config: Config{Recipients: []string{"age1example"}},
		disk: diskSpec{table: "gpt", partitions: imageAnd(unfinished(state), but(data, func(p *partSpec) { p.content = Content{} }))}},
	// The configuration is unknown when DATA is formatted: it is on STATE.
	{name: "DATA was reset, encrypted", disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), but(data, func(p *partSpec) { p.content = Content{} }))}},
	{name: "power cut before the secret of STATE, encrypted", config: Config{Recipients: []string{"age1example"}},
		disk: diskSpec{table: "gpt", partitions: imageAnd(unfinished(state), unfinished(data))}},
	{name: "failed before the secret of STATE, encrypted", mount: true, config: Config{Recipients: []string{"age1example"}},
		disk: diskSpec{table: "gpt", partitions: imageAnd(but(unfinished(state), func(p *partSpec) { p.encryption.Open = true }), open(data))}},
	{name: "DATA is plain beside an encrypted STATE", disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), data)}},
	{name: "DATA is plain beside an encrypted STATE, wipe", config: Config{Wipe: true}, disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), data)}},
	{name: "DATA is plain beside an open STATE, wipe", config: Config{Wipe: true}, disk: diskSpec{table: "gpt", partitions: imageAnd(open(state), data)}},
	{name: "DATA is plain beside a blank STATE, encrypted", config: Config{Recipients: []string{"age1example"}}, disk: diskSpec{table: "gpt", partitions: imageAnd(blank(state), data)}},
	{name: "DATA is encrypted beside a plain STATE", disk: diskSpec{table: "gpt", partitions: imageAnd(state, locked(data))}},
	{name: "DATA is encrypted beside a plain STATE, wipe", config: Config{Wipe: true, Recipients: []string{"age1example"}}, disk: diskSpec{table: "gpt", partitions: imageAnd(state, locked(data))}},
	{name: "DATA is encrypted beside a blank STATE", disk: diskSpec{table: "gpt", partitions: imageAnd(blank(state), locked(data))}},
	{name: "DATA is encrypted beside a foreign STATE", config: Config{Recipients: []string{"age1example"}}, disk: diskSpec{table: "gpt", partitions: imageAnd(
		but(state, func(p *partSpec) { p.content = Content{Kind: luksKind} }), locked(data))}},
	{name: "not known whether to encrypt", config: Config{Undecided: "the configuration of the image is wrong"}, disk: diskSpec{table: "gpt", partitions: image}},
	{name: "not known whether to encrypt, wipe", config: Config{Wipe: true, Undecided: "the configuration of the image is wrong"},
		disk: diskSpec{table: "gpt", partitions: imageAnd(but(state, func(p *partSpec) { p.content = ext4("photos", 256) }), data)}},
	{name: "not known whether to encrypt, later boot", config: Config{Undecided: "the configuration of the image is wrong"}, disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), locked(data))}},
	{name: "plain partitions stay plain", config: Config{Recipients: []string{"age1example"}}, disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}},
}

// interrupted is the next boot after an interrupted apply that requests encryption.
var interrupted = scenario{name: "power cut in an apply with encryption", disk: diskSpec{table: "gpt", partitions: imageAnd(unfinished(state), blank(data))}}

// replaced is a STATE that an attacker has zeroed beside an encrypted DATA. DATA does not open
// beside the new STATE, so the laws do not hold (TestReplacedState).
var replaced = scenario{name: "DATA is encrypted beside a blank STATE, encrypted", config: Config{Recipients: []string{"age1example"}},
	disk: diskSpec{table: "gpt", partitions: imageAnd(blank(state), locked(data))}}

// blank returns a partition without content.
func blank(p partSpec) partSpec {
	p.content = Content{}
	return p
}

// locked returns an encrypted partition that is not open.
func locked(p partSpec) partSpec {
	p.content = Content{Kind: lockedKind, Label: p.label}
	p.encryption = &Encryption{Recipients: []string{"age1example"}}
	return p
}

// open returns an encrypted partition that is open.
func open(p partSpec) partSpec {
	p = locked(p)
	p.content = ext4(p.label, p.size-diskkey.HeaderSize/mib)
	p.encryption.Open = true
	return p
}

// unfinished returns an encrypted partition with an interrupted first format.
func unfinished(p partSpec) partSpec {
	p = locked(p)
	p.content, p.encryption.New = Content{}, true
	return p
}

// printed returns the output for an operator: the operations, one per line, or the error.
func printed(ops []reconcile.Op, err error) string {
	if err != nil {
		return "refused: " + err.Error() + "\n"
	}
	text := ""
	for _, op := range ops {
		text += op.String() + "\n"
	}
	if text == "" {
		return "nothing to do\n"
	}
	return text
}

// but returns p with a change.
func but(p partSpec, change func(*partSpec)) partSpec {
	change(&p)
	return p
}
