package disk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// model returns the state that Read would return for the scenario.
func model(s scenario) Have {
	if s.disk.absent {
		return Have{}
	}
	d := Disk{Path: "/dev/vda", Hardware: Hardware{Size: diskSize * mib, SectorSize: 512}, Boot: !s.disk.data,
		Table: Table{Kind: s.disk.table, Alignment: mib, First: mib, End: diskSize*mib - 34*512}}
	d.Shared = s.disk.shared
	d.BackupAtEnd = d.Table.Kind == "gpt" && !s.disk.torn && s.disk.tableSize == 0
	at := uint64(mib)
	for i, p := range s.disk.partitions {
		path := parttable.PartitionPath(d.Path, i+1)
		d.Partitions = append(d.Partitions, Partition{Path: path, Content: p.content,
			Entry: Entry{Number: i + 1, Label: p.label, Type: p.kind, Start: at, Size: p.size * mib}})
		at += p.size * mib
	}
	have := Have{Disks: []Disk{d}}
	if s.mount {
		have.Mounts = mountAll(d)
	}
	return have
}

func mountAll(d Disk) []mount.Mount {
	var mounts []mount.Mount
	for _, v := range systemVolumes() {
		for _, p := range d.Partitions {
			if p.Label == v.Format.Label {
				v.Mount.Source = p.Path
				mounts = append(mounts, v.Mount)
			}
		}
	}
	return mounts
}

func clone(have Have) Have {
	have.Disks, have.Mounts = slices.Clone(have.Disks), slices.Clone(have.Mounts)
	for i := range have.Disks {
		have.Disks[i].Partitions = slices.Clone(have.Disks[i].Partitions)
	}
	return have
}

// done returns the model after an operation.
func done(have Have, op reconcile.Op) Have {
	have = clone(have)
	switch op := op.(type) {
	case Identify:
		d := &have.Disks[slices.IndexFunc(have.Disks, func(d Disk) bool { return d.Path == op.Disk })]
		d.Shared, d.BackupAtEnd = false, true
	case WriteTable:
		d := &have.Disks[slices.IndexFunc(have.Disks, func(d Disk) bool { return d.Path == op.Disk })]
		if op.New {
			d.Partitions = nil
		}
		d.Table.Kind, d.BackupAtEnd = "gpt", true
		for _, e := range op.Remove {
			d.Partitions = slices.DeleteFunc(d.Partitions, func(p Partition) bool { return p.Number == e.Number })
		}
		for _, e := range op.Add {
			d.Partitions = append(d.Partitions, Partition{Entry: e, Path: parttable.PartitionPath(d.Path, e.Number)})
		}
		for _, e := range op.Grow {
			partitionAt(have, parttable.PartitionPath(d.Path, e.Number)).Size = e.Size
		}
	case Format:
		p := partitionAt(have, op.Device)
		p.Content = Content{Kind: "ext4", Label: op.Label, Size: p.Size}
	case Mount:
		have.Mounts = append(have.Mounts, op.Mount)
	case GrowFilesystem:
		m, _ := mount.Topmost(have.Mounts, op.Target)
		partitionAt(have, m.Source).Content.Size = op.Size
	case Wipe:
		partitionAt(have, op.Device).Content = Content{}
	}
	return have
}

// cut lists the models that a power cut during an operation may leave, in addition to the models
// before and after the operation.
func cut(have Have, op reconcile.Op) []Have {
	switch op := op.(type) {
	case Identify: // the backup table is new, and the primary table is old or broken
		old, torn := clone(have), done(have, op)
		old.Disks[0].BackupAtEnd, torn.Disks[0].BackupAtEnd = false, false
		return []Have{old, torn}
	case WriteTable:
		wiped, torn := clone(have), done(have, op)
		if op.New { // CreatePartitions removes the old table before it writes the new table
			wiped.Disks[0].Table.Kind, wiped.Disks[0].Partitions, wiped.Disks[0].BackupAtEnd = "", nil, false
		}
		// the backup is new and the primary is broken: the next boot reads the backup
		torn.Disks[0].BackupAtEnd = false
		return []Have{wiped, torn}
	case Format:
		blank := clone(have)
		partitionAt(blank, op.Device).Content = Content{}
		return []Have{blank}
	case GrowFilesystem:
		half := clone(have)
		m, _ := mount.Topmost(half.Mounts, op.Target)
		p := partitionAt(half, m.Source)
		p.Content.Size = (p.Content.Size + op.Size) / 2
		return []Have{half}
	}
	return nil
}

func partitionAt(have Have, path string) *Partition {
	for i := range have.Disks {
		for j := range have.Disks[i].Partitions {
			if have.Disks[i].Partitions[j].Path == path {
				return &have.Disks[i].Partitions[j]
			}
		}
	}
	panic("no partition " + path + ": an operation names a partition that does not exist")
}

// reboot removes the mounts.
func reboot(have Have) Have {
	have = clone(have)
	have.Mounts = nil
	return have
}

func TestGoldens(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			have := model(s)
			want, err := Plan(s.config, have)
			golden.Assert(t, printed(Diff(have, want, nil), err), s.name+".txt")
		})
	}
}

// TestLaws checks both laws of a domain against every scenario: Diff is empty after its operations,
// and a restart during or after any operation converges.
func TestLaws(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { checkLaws(t, s.config, model(s)) })
	}
}

func checkLaws(t *testing.T, config Config, start Have) {
	t.Helper()
	want, err := Plan(config, start)
	if err != nil {
		return // rejected without an operation; TestGoldens shows the error
	}
	have := start
	for _, op := range Diff(start, want, nil) {
		for i, broken := range cut(have, op) {
			converges(t, config, reboot(broken), fmt.Sprintf("cut %d in %s", i, op))
		}
		have = done(have, op)
		converges(t, config, reboot(have), "stopped after "+op.String())
	}
	if left := Diff(have, want, nil); len(left) > 0 {
		t.Errorf("these operations remain after all operations:\n%s", printed(left, nil))
	}
	again, err := Plan(config, have)
	if err != nil {
		t.Errorf("after all operations: %v", err)
	}
	if left := Diff(have, again, nil); len(left) > 0 {
		t.Errorf("planned again after all operations, these operations remain:\n%s", printed(left, nil))
	}
	kept(t, start, have)
}

// converges runs the planned operations and checks that both volumes are mounted.
func converges(t *testing.T, config Config, have Have, when string) {
	t.Helper()
	want, err := Plan(config, have)
	if err != nil {
		t.Errorf("%s: %v", when, err)
		return
	}
	for _, op := range Diff(have, want, nil) {
		have = done(have, op)
	}
	if left := Diff(have, want, nil); len(left) > 0 {
		t.Errorf("%s: these operations remain:\n%s", when, printed(left, nil))
	}
	for _, v := range want.Volumes {
		m, ok := mount.Topmost(have.Mounts, v.Mount.Target)
		if !ok || !v.holds(partitionAt(have, m.Source).Content) {
			t.Errorf("%s: %s is not mounted with its file system", when, v.Format.Label)
		}
	}
}

// kept checks that the operations did not change STATE, DATA and the partitions of the image.
func kept(t *testing.T, before, after Have) {
	t.Helper()
	for _, d := range before.Disks {
		for _, p := range d.Partitions {
			own := p.Label == layout.State || p.Label == layout.Data
			if !isSystemPartition(p.Entry) || own && p.Content.Label != p.Label {
				continue
			}
			now := partitionAt(after, p.Path)
			if now.Start != p.Start || now.Label != p.Label || now.Size < p.Size || !own && now.Content != p.Content || own && now.Content.UUID != p.Content.UUID {
				t.Errorf("%s was changed from %+v to %+v", p.Path, p, *now)
			}
		}
	}
}

// TestLawsOnRandomDisks checks the laws against random disks.
func TestLawsOnRandomDisks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	contents := []Content{{}, {Kind: unknownData}, ext4("other", 50), {Kind: "xfs"}, ext4(layout.State, 50), ext4(layout.Data, 50)}
	accepted := 0
	for i := range 20000 {
		s := scenario{config: Config{Wipe: random.IntN(2) == 0}, disk: diskSpec{table: "gpt", torn: random.IntN(4) == 0, shared: random.IntN(4) == 0}}
		if random.IntN(4) == 0 {
			s.disk.tableSize = 1900
		}
		room := uint64(1800)
		for _, p := range []partSpec{image[0], image[1], image[2], foreign, state, foreign, data, foreign} {
			if random.IntN(3) == 0 || p.size == 64 {
				if p.size > 100 {
					p.size = min(room, 20+random.Uint64N(600))
					p.content = contents[random.IntN(len(contents))]
					p.content.Size = min(p.content.Size, p.size*mib)
				}
				if room -= p.size; room > 0 {
					s.disk.partitions = append(s.disk.partitions, p)
				}
			}
		}
		have := model(s)
		if _, err := Plan(s.config, have); err == nil {
			accepted++
		}
		checkLaws(t, s.config, have)
		if t.Failed() {
			t.Fatalf("disk %d: %+v", i, s)
		}
	}
	if accepted < 2000 {
		t.Errorf("only %d disks were accepted: too few for this test", accepted)
	}
}

// TestClone checks that a clone of the system disk is rejected until STATE is mounted, regardless
// of the order of the names. Another disk with the same image, a clone of an older version, and
// another path to the same disk are not clones. No operation changes one of these disks.
func TestClone(t *testing.T) {
	for name, c := range map[string]struct {
		same             []string // partitions with equal GUIDs on both disks
		mounted, refused bool
		wwid, transport  string // of the other disk
	}{
		"clone":                                    {same: []string{layout.ESP, layout.RootA, layout.RootB, layout.State}, refused: true},
		"clone that was plugged in later":          {same: []string{layout.ESP, layout.RootA, layout.RootB, layout.State}, mounted: true},
		"clone of an older version":                {same: []string{layout.ESP, layout.RootB, layout.State}},
		"same image":                               {same: []string{layout.RootA}},
		"another disk":                             {},
		"another path to the same disk":            {same: []string{layout.ESP, layout.RootA, layout.RootB, layout.State}, wwid: "naa.1"},
		"clone on USB with the same identifier":    {same: []string{layout.ESP, layout.RootA, layout.RootB, layout.State}, wwid: "naa.1", transport: "usb", refused: true},
		"clone, and both disks have an identifier": {same: []string{layout.ESP, layout.RootA, layout.RootB, layout.State}, wwid: "naa.2", refused: true},
	} {
		for _, path := range []string{"/dev/sda", "/dev/vdb"} {
			have := model(scenario{mount: c.mounted, disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}})
			have.Disks[0].WWID = "naa.1"
			other := clone(have).Disks[0]
			other.Path, other.Boot, other.WWID, other.Transport = path, false, c.wwid, c.transport
			for i := range other.Partitions {
				have.Disks[0].Partitions[i].UUID = uuid.New()
				other.Partitions[i].Path = parttable.PartitionPath(path, i+1)
				if other.Partitions[i].UUID = uuid.New(); slices.Contains(c.same, other.Partitions[i].Label) {
					other.Partitions[i].UUID = have.Disks[0].Partitions[i].UUID
				}
			}
			have.Disks[0].Root = have.Disks[0].Partitions[1].UUID
			have.Disks = append(have.Disks, other)
			slices.SortFunc(have.Disks, func(a, b Disk) int { return strings.Compare(a.Path, b.Path) })
			want, err := Plan(Config{}, have)
			if c.refused {
				if err == nil || !strings.Contains(err.Error(), "cannot tell the system disk") || !strings.Contains(err.Error(), path) {
					t.Errorf("%s at %s: %v", name, path, err)
				}
				continue
			}
			if err != nil || want.Disk != "/dev/vda" {
				t.Errorf("%s at %s: %+v, %v", name, path, want, err)
			}
			for _, v := range want.Volumes {
				if !strings.HasPrefix(v.Mount.Source, "/dev/vda") {
					t.Errorf("%s at %s: %s comes from %s", name, path, v.Format.Label, v.Mount.Source)
				}
			}
		}
	}
}

// TestReset checks that a reset wipes DATA before STATE, and that a machine creates both again
// after the reset.
func TestReset(t *testing.T) {
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}})
	other := have.Disks[0]
	other.Path, other.Boot = "/dev/vdb", false
	other.Partitions = slices.Clone(other.Partitions)
	for i := range other.Partitions {
		other.Partitions[i].Path = parttable.PartitionPath(other.Path, i+1)
	}
	// a disk of another machine, which no operation may touch
	have.Disks = append(have.Disks, other)
	ops := Reset(have, []string{layout.Data, layout.State}, nil)
	golden.Assert(t, printed(ops, nil), "reset.txt")
	golden.Assert(t, printed(Reset(have, []string{layout.State}, nil), nil), "reset, keep data.txt")
	for _, op := range ops {
		have = done(have, op)
	}
	if left := Reset(have, []string{layout.Data, layout.State}, nil); len(left) > 0 {
		t.Errorf("after the reset, these operations remain:\n%s", printed(left, nil))
	}
	want, err := Plan(Config{}, have)
	golden.Assert(t, printed(Diff(have, want, nil), err), "after reset.txt")
}
