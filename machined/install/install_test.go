package install

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/verity"
)

const gib = 1 << 30

// typeLinux is the type of foreign partitions.
var typeLinux = uuid.MustParse("0fc63daf-8483-4772-8e79-3d69d8477de4")

func system() System {
	return System{
		Version: "1.0.0", Root: verity.Params{RootHash: make([]byte, 32), DataBlocks: 1, HashStart: 1}, RootSize: 260 << 20, UKISize: 20 << 20,
		Sizes: layout.Sizes{ESP: 256 << 20, Root: 512 << 20},
	}
}

// The disks of a machine in the tests.
var (
	nvme   = Disk{Path: "/dev/nvme0n1", Model: "Samsung SSD 980", Serial: "S64D", WWID: "eui.0025", Bus: "/pci0000:00/0000:00:1d.0", Transport: "nvme", Size: 500 * gib, SectorSize: 512}
	virtio = Disk{Path: "/dev/vda", Serial: "disk0", Bus: "/pci0000:00/0000:00:03.0/virtio0", Transport: "virtio", Size: 8 * gib, SectorSize: 512}
	second = Disk{Path: "/dev/vdb", Serial: "disk1", Bus: "/pci0000:00/0000:00:04.0/virtio1", Transport: "virtio", Size: 16 * gib, SectorSize: 512}
	small  = Disk{Path: "/dev/sda", Model: "Flash", Transport: "usb", Size: 2 * gib, SectorSize: 512}
	stick  = Disk{Path: "/dev/sdb", Model: "Flash", Transport: "usb", Size: 32 * gib, SectorSize: 512, Medium: "the configuration lies on it"}
	card   = Disk{Path: "/dev/sdc", Model: "Reader", Transport: "usb", Size: 32 * gib, SectorSize: 512, ReadOnly: true}
)

// The function with returns the disk d with a GPT and one partition for each label. The label of a
// system partition gives a partition with its type and size; another label gives a foreign
// partition.
func with(d Disk, labels ...string) Disk {
	d.Table = "gpt"
	for i, label := range labels {
		p := Partition{Number: i + 1, Label: label, Type: typeLinux, Size: gib, Content: "ext4 " + label}
		for _, ours := range layout.Installed(system().Sizes) {
			if ours.Label == label {
				p.Type, p.Size = ours.Type, ours.Size
			}
		}
		if label == layout.Data {
			p.Type = layout.TypeData
		}
		d.Partitions = append(d.Partitions, p)
	}
	return d
}

// bootable returns a disk with a boot loader.
func bootable(d Disk) Disk {
	d.Bootable = true
	return d
}

// holding returns a disk with content other than GPT.
func holding(d Disk, what string) Disk {
	d.Table = what
	return d
}

var (
	ran    = with(virtio, layout.ESP, layout.RootA, layout.RootB, layout.State, layout.Data)
	cutOff = with(virtio, layout.ESP, layout.RootA, layout.RootB, layout.State)
	// native has sectors of 4096 bytes. twinned already contains the version that the tests
	// install.
	native  = Disk{Path: "/dev/sdd", Model: "Large", Transport: "sata", Size: 500 * gib, SectorSize: 4096}
	twinned = func() Disk {
		d := with(second, layout.ESP, layout.RootA, layout.RootB, layout.State, layout.Data)
		d.Partitions[1].UUID = system().Root.PartUUID()
		return d
	}()
	flashed = bootable(with(virtio, layout.ESP, layout.RootA, layout.RootB))
)

// scenarios are requests for an installation. For each scenario, testdata contains the plan of the
// machine or its error.
var scenarios = []struct {
	name   string
	config Config
	facts  Facts
}{
	{"the only disk", Config{}, Facts{Disks: []Disk{virtio}}},
	{"no disk at all", Config{}, Facts{}},
	{"two equal disks", Config{Disk: config.DiskSelector{Bus: "virtio"}}, Facts{Disks: []Disk{nvme, virtio, second}}},
	{"larger sectors", Config{}, Facts{Disks: []Disk{native}}},
	{"the same version on another disk", Config{Disk: config.DiskSelector{Serial: "disk0"}}, Facts{Disks: []Disk{virtio, twinned}}},
	{"the same version on the disk", Config{Wipe: "disk1"}, Facts{Disks: []Disk{twinned}}},
	{"none", Config{Disk: config.DiskSelector{Size: config.SizeRange{Min: 1 << 40}, Model: "WD*", Serial: "X", WWID: "naa.*", Path: "/dev/sd*", Bus: "sata"}}, Facts{Disks: []Disk{nvme, virtio}}},
	{"too large", Config{Disk: config.DiskSelector{Size: config.SizeRange{Max: 10 * gib}}}, Facts{Disks: []Disk{nvme, virtio}}},
	{"by pattern", Config{Disk: config.DiskSelector{Model: "Samsung*", Bus: "/pci0000:00/*", WWID: "eui.*"}}, Facts{Disks: []Disk{nvme, virtio}}},
	{"unusable disks", Config{}, Facts{Disks: []Disk{small, stick, card}}},
	{"by expression", Config{Disk: config.DiskSelector{Match: "disk.size < 10 * GiB"}}, Facts{Disks: []Disk{nvme, virtio}, Matches: map[string]bool{virtio.Path: true}}},
	{"expression false", Config{Disk: config.DiskSelector{Match: "false"}}, Facts{Disks: []Disk{nvme, virtio}, Matches: map[string]bool{}}},
	{"foreign partitions", Config{}, Facts{Disks: []Disk{with(virtio, "photos", "music")}}},
	{"foreign partition beside system partitions", Config{}, Facts{Disks: []Disk{with(virtio, layout.ESP, layout.RootA, layout.RootB, "music")}}},
	{"foreign ESP", Config{}, Facts{Disks: []Disk{with(virtio, layout.ESP)}}},
	{"file system on the whole disk", Config{}, Facts{Disks: []Disk{holding(nvme, "a whole-disk xfs")}}},
	{"empty table", Config{}, Facts{Disks: []Disk{with(virtio)}}},
	{"foreign, another disk named", Config{Wipe: "disk1"}, Facts{Disks: []Disk{with(virtio, "photos")}}},
	{"foreign, named by path", Config{Wipe: "/dev/vda"}, Facts{Disks: []Disk{with(virtio, "photos")}}},
	{"foreign, named by serial", Config{Wipe: "disk0"}, Facts{Disks: []Disk{with(virtio, "photos")}}},
	{"foreign, named by wwid", Config{Wipe: "eui.0025"}, Facts{Disks: []Disk{with(nvme, "photos")}}},
	{"installed", Config{}, Facts{Disks: []Disk{ran}}},
	{"installed, named", Config{Wipe: "disk0"}, Facts{Disks: []Disk{ran}}},
	{"installed, named by a medium", Config{Wipe: "disk0", Unattended: true}, Facts{Disks: []Disk{ran}}},
	{"interrupted installation", Config{Unattended: true}, Facts{Disks: []Disk{cutOff}}},
	{"flashed, never booted", Config{}, Facts{Disks: []Disk{flashed}}},
	{"installed, the medium boots again", Config{Unattended: true, Wipe: "disk0"}, Facts{Disks: []Disk{bootable(cutOff)}}},
}

func TestScenarios(t *testing.T) {
	for _, s := range scenarios {
		s.facts.System = system()
		w, err := Plan(s.config, s.facts)
		var got string
		if err != nil {
			got = "error: " + err.Error() + "\n"
		} else {
			got = strings.Join(Print(w), "\n") + "\n"
		}
		golden.Assert(t, got, s.name+".txt")
	}
}

// TestTooLarge checks that Plan rejects a system whose root does not fit its partition, or whose
// UKI does not fit twice into the ESP, which holds two versions.
func TestTooLarge(t *testing.T) {
	for _, change := range []func(*System){func(s *System) { s.RootSize = 513 << 20 }, func(s *System) { s.UKISize = 129 << 20 }} {
		f := Facts{Disks: []Disk{virtio}, System: system()}
		change(&f.System)
		if _, err := Plan(Config{}, f); err == nil {
			t.Errorf("a system that is too large is accepted: %+v", f.System)
		}
	}
}

// done returns the disk as it is after an operation.
func done(d Disk, op reconcile.Op) Disk {
	switch op := op.(type) {
	case CreatePartitionTable:
		d.Table, d.Bootable, d.Partitions = "gpt", false, nil
		for i, p := range op.Partitions {
			d.Partitions = append(d.Partitions, Partition{Number: i + 1, Label: p.Label, Type: p.Type, Size: p.Size, Content: "blank"})
		}
	case WriteLoader:
		d.Bootable = true
	}
	return d
}

// TestStopAnywhere stops an installation after each operation. It checks that the next attempt
// needs no permission to wipe the disk (Wipe), and performs the same operations. After the last
// operation, the next installation is rejected, before and after the first boot of the installed
// system.
func TestStopAnywhere(t *testing.T) {
	for _, before := range []Disk{virtio, with(virtio, "photos"), holding(virtio, "unknown data"), cutOff, flashed, ran} {
		w, err := Plan(Config{Wipe: virtio.Path}, Facts{Disks: []Disk{before}, System: system()})
		if err != nil {
			t.Fatal(err)
		}
		ops := Operations(w, Tools{})
		d := before
		for i, op := range ops {
			d = done(d, op)
			again, err := Plan(Config{Unattended: true}, Facts{Disks: []Disk{d}, System: system()})
			if last := i == len(ops)-1; last != (err != nil) {
				t.Fatalf("stopped after %q: %v", op, err)
			} else if last {
				continue
			}
			if got, want := reconcile.Print(Operations(again, Tools{})), reconcile.Print(ops); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("stopped after %q: the next attempt has the operations %q", op, got)
			}
		}
		// The first boot of the installed system creates DATA.
		d.Partitions = append(d.Partitions, Partition{Number: 5, Label: layout.Data, Type: layout.TypeData, Size: gib})
		// Bootable is false, because the boot disk is not examined for a boot loader.
		d.Bootable = false
		if _, err := Plan(Config{}, Facts{Disks: []Disk{d}, System: system()}); err == nil {
			t.Error("an installation over a system that has booted is accepted")
		}
		if all := Installed([]Disk{virtio, d}); len(all) != 1 {
			t.Errorf("the disks with an installed system are %v, want the second disk only", all)
		}
	}
}

// TestLoaderIsLast checks that the boot loader is written after all other content.
func TestLoaderIsLast(t *testing.T) {
	ops := Operations(Want{Disk: virtio, System: system()}, Tools{})
	if _, last := ops[len(ops)-1].(WriteLoader); !last {
		t.Errorf("the last operation is %q", ops[len(ops)-1])
	}
	if _, first := ops[0].(CreatePartitionTable); !first {
		t.Errorf("the first operation is %q", ops[0])
	}
}

// stopped returns a context that has ended.
func stopped(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestStoppable checks that a contextReader, with which operations copy hundreds of megabytes,
// returns an error when its context has ended.
func TestStoppable(t *testing.T) {
	if n, err := (contextReader{stopped(t), strings.NewReader("root")}).Read(make([]byte, 4)); n != 0 || err == nil {
		t.Errorf("%d bytes were read after the end of the context; error %v", n, err)
	}
}

// TestUnexamined checks that a disk with unknown content, or which is a member of a RAID, is
// treated as a disk with data: an installation wipes it only if the configuration names it (Wipe).
func TestUnexamined(t *testing.T) {
	for _, table := range []string{"content that cannot be examined: no answer within 15s", "content that has not been examined", "a whole-disk Linux RAID member",
		"Intel RAID member with a GPT partition table"} {
		f := Facts{Disks: []Disk{holding(virtio, table)}, System: system()}
		if _, err := Plan(Config{}, f); err == nil || !strings.Contains(err.Error(), "refusing to install: it holds "+table) {
			t.Errorf("%s: %v", table, err)
		}
		if _, err := Plan(Config{Unattended: true}, f); err == nil {
			t.Errorf("%s: an unattended installation is accepted", table)
		}
		if _, err := Plan(Config{Wipe: virtio.Path}, f); err != nil {
			t.Errorf("%s, although the configuration names the disk: %v", table, err)
		}
	}
}
