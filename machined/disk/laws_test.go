package disk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskkey"
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
		d.Partitions = append(d.Partitions, Partition{Path: path, Content: p.content, Encryption: p.encryption,
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
				if p.Encryption != nil {
					v.Mount.Source = diskkey.MappedPath(p.Label)
				}
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
	case Encrypt:
		p := partitionAt(have, op.Device)
		p.Content, p.Encryption = Content{}, &Encryption{Open: true, New: true}
	case Format:
		// FinishEncryption completes a mapped device.
		if p := partitionAt(have, op.Device); p.Path == op.Device {
			p.Content, p.Encryption = Content{Kind: "ext4", Label: op.Label, Size: p.Size}, nil
		}
	case FinishEncryption:
		p := partitionAt(have, op.Device)
		p.change(func(e *Encryption) { e.New = false })
		p.Content = Content{Kind: "ext4", Label: op.Label, Size: p.Size - diskkey.HeaderSize}
	case Unlock:
		p := partitionAt(have, op.Device)
		p.change(func(e *Encryption) { e.Open = true })
		p.Content = Content{Kind: "ext4", Label: op.Label, Size: p.Size - diskkey.HeaderSize}
	case DestroyKeys:
		p := partitionAt(have, op.Device)
		if p.Encryption.Fault != "" { // its header is overwritten
			p.Content, p.Encryption = Content{}, nil
			break
		}
		p.change(func(e *Encryption) { e.Open, e.Destroyed, e.New = false, !e.New || e.Destroyed, true })
		p.Content = Content{}
	case Mount:
		have.Mounts = append(have.Mounts, op.Mount)
	case GrowFilesystem:
		m, _ := mount.Topmost(have.Mounts, op.Target)
		partitionAt(have, m.Source).Content.Size = op.Size
	case Wipe:
		p := partitionAt(have, op.Device)
		p.Content, p.Encryption = Content{}, nil
	}
	return have
}

// change changes a copy of the encryption of a partition, because models share the value.
func (p *Partition) change(f func(*Encryption)) {
	next := *p.Encryption
	f(&next)
	p.Encryption = &next
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
	case Encrypt: // wiped, without a header
		wiped := clone(have)
		p := partitionAt(wiped, op.Device)
		p.Content, p.Encryption = Content{}, nil
		return []Have{wiped}
	case Format:
		blank := clone(have)
		partitionAt(blank, op.Device).Content = Content{}
		return []Have{blank}
	case Wipe: // the end is wiped, and the beginning is not
		return []Have{clone(have)}
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
			p := have.Disks[i].Partitions[j]
			if p.Path == path || p.Encryption != nil && p.Encryption.Open && path == diskkey.MappedPath(p.Label) {
				return &have.Disks[i].Partitions[j]
			}
		}
	}
	panic("no partition " + path + ": an operation names a partition that does not exist")
}

// reboot removes the mounts, and locks the encrypted volumes.
func reboot(have Have) Have {
	have = clone(have)
	have.Mounts = nil
	for i := range have.Disks {
		for j := range have.Disks[i].Partitions {
			p := &have.Disks[i].Partitions[j]
			if p.Encryption == nil {
				continue
			}
			p.change(func(e *Encryption) { e.Open = false })
			if !p.Encryption.New {
				p.Content = Content{Kind: lockedKind, Label: p.Label}
			}
		}
	}
	return have
}

func TestGoldens(t *testing.T) {
	for _, s := range append(slices.Concat(scenarios, encrypted), interrupted, replaced) {
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
	for _, s := range slices.Concat(scenarios, encrypted) {
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
		if !ok || !v.holds(*partitionAt(have, m.Source)) || partitionAt(have, m.Source).Content.Kind != "ext4" {
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
			if own && p.Encryption == nil && partitionAt(after, p.Path).Encryption != nil {
				continue // an operator has permitted to wipe a plain DATA beside an encrypted STATE
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

// TestResetOfEncrypted checks that a reset destroys the keys of all volumes before any other
// operation, and that a reset which stops after any operation ends in a machine that formats its
// volumes again.
func TestResetOfEncrypted(t *testing.T) {
	have := model(scenario{mount: false, disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), locked(data))}})
	golden.Assert(t, printed(Reset(have, []string{layout.Data, layout.State}, nil), nil), "reset, encrypted.txt")
	faulty := clone(have)
	partitionAt(faulty, "/dev/vda4").change(func(e *Encryption) { e.Fault = "no copy is valid" })
	for _, have := range []Have{have, faulty} {
		for _, op := range Reset(have, []string{layout.Data, layout.State}, nil) {
			stops := append(cut(have, op), done(have, op))
			have = done(have, op)
			for _, stopped := range stops {
				if p := partitionAt(stopped, "/dev/vda5"); p.Encryption != nil && !p.Encryption.New {
					continue // the keys of DATA are there
				}
				for _, config := range []Config{{}, {Wipe: true}, {Wipe: true, Recipients: []string{"age1example"}}} {
					converges(t, config, reboot(stopped), "stopped in or after "+op.String())
				}
			}
		}
	}
}

// TestResetOfUnfinished checks that a reset wipes a volume whose format was interrupted: STATE can
// be mounted then, with the machine key. Afterwards no operation remains.
func TestResetOfUnfinished(t *testing.T) {
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(unfinished(state), unfinished(data))}})
	wiped := map[string]bool{}
	for _, op := range Reset(have, []string{layout.Data, layout.State}, nil) {
		if w, ok := op.(Wipe); ok {
			wiped[w.Label] = true
		}
		have = done(have, op)
	}
	if !wiped[layout.State] || !wiped[layout.Data] {
		t.Errorf("wiped: %v", wiped)
	}
	if left := Reset(have, []string{layout.Data, layout.State}, nil); len(left) > 0 {
		t.Errorf("after the reset, these operations remain:\n%s", printed(left, nil))
	}
	converges(t, Config{}, have, "after the reset")
}

// TestInterruptedApply cuts the power during the operations of an apply that requests encryption,
// on a machine with an image that does not. The next boot formats no STATE without encryption; the
// same apply, or a reset, continues.
func TestInterruptedApply(t *testing.T) {
	apply := Config{Wipe: true, Recipients: []string{"age1example"}}
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(but(state, func(p *partSpec) { p.content = ext4("photos", 256) }), data)}})
	want, err := Plan(apply, have)
	if err != nil {
		t.Fatal(err)
	}
	refusals := 0
	for _, op := range Diff(have, want, nil) {
		have = done(have, op)
		stopped := reboot(have)
		if e := partitionAt(stopped, "/dev/vda4").Encryption; e == nil || !e.New {
			continue
		}
		refusals++
		if planned, err := Plan(Config{}, stopped); err == nil || !strings.Contains(err.Error(), "was encrypted and was interrupted") {
			t.Errorf("stopped after %s: %v\n%s", op, err, printed(Diff(stopped, planned, nil), nil))
		}
		converges(t, apply, stopped, "apply again, stopped after "+op.String())
		for _, op := range Reset(stopped, []string{layout.Data, layout.State}, nil) {
			stopped = done(stopped, op)
		}
		converges(t, Config{}, stopped, "reset, stopped after "+op.String())
	}
	if refusals < 2 {
		t.Errorf("only %d refusals", refusals)
	}
}

// TestWaiting checks that no permission makes the machine overwrite a locked volume, also if its
// header is damaged or was changed.
func TestWaiting(t *testing.T) {
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), locked(data))}})
	faulty := clone(have)
	partitionAt(faulty, "/dev/vda4").change(func(e *Encryption) { e.Fault = "no copy is valid" })
	for _, have := range []Have{have, faulty} {
		for _, config := range []Config{{}, {Wipe: true}, {Wipe: true, Recipients: []string{"age1other"}}} {
			want, err := Plan(config, have)
			if err != nil {
				t.Fatal(err)
			}
			for _, op := range Diff(have, want, nil) {
				switch op.(type) {
				case Unlock, Check, Mount:
				default:
					t.Errorf("%+v: %s", config, op)
				}
			}
		}
	}
}

// TestReplacedState checks that nothing overwrites a locked DATA, whatever an attacker puts in the
// place of STATE, and whatever the configuration permits. DATA is mounted only after it was opened,
// which needs the secret on its own STATE (diskkey: TestBinding).
func TestReplacedState(t *testing.T) {
	for name, other := range map[string]partSpec{
		"blank": blank(state), "plain": state, "a foreign file system": but(state, func(p *partSpec) { p.content = ext4("photos", 256) }),
		"foreign LUKS": but(state, func(p *partSpec) { p.content = Content{Kind: luksKind} }), "LUKS of the attacker": locked(state), "unfinished": unfinished(state),
		"DATA in its place": but(state, func(p *partSpec) { p.content = ext4(layout.Data, 256) }),
	} {
		for _, config := range []Config{{}, {Wipe: true}, {Recipients: []string{"age1other"}}, {Wipe: true, Recipients: []string{"age1other"}}, {Undecided: "x"}} {
			have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(other, locked(data))}})
			want, err := Plan(config, have)
			if err != nil {
				continue // nothing happens
			}
			opened := false
			for _, op := range Diff(have, want, nil) {
				switch op := op.(type) {
				case Encrypt, Format, Wipe, DestroyKeys, FinishEncryption, GrowFilesystem:
					if strings.Contains(op.String(), "vda5") || strings.Contains(op.String(), layout.Data) {
						t.Errorf("%s, %+v: %s", name, config, op)
					}
				case WriteTable:
					t.Errorf("%s, %+v: %s", name, config, op)
				case Unlock:
					opened = opened || op.Label == layout.Data
				case Mount:
					if op.Label == layout.Data && (!opened || op.Source != diskkey.MappedPath(layout.Data)) {
						t.Errorf("%s, %+v: %s", name, config, op)
					}
				}
			}
			if !opened {
				t.Errorf("%s, %+v: DATA is not opened", name, config)
			}
		}
	}
}

// TestReplacedData checks that a machine with an encrypted STATE mounts no DATA that is not
// encrypted.
func TestReplacedData(t *testing.T) {
	for name, other := range map[string]partSpec{
		"plain": data, "a foreign file system": but(data, func(p *partSpec) { p.content = ext4("photos", 256) }), "blank": blank(data),
		"STATE in its place": but(data, func(p *partSpec) { p.content = ext4(layout.State, 256) }), "foreign LUKS": but(data, func(p *partSpec) { p.content = Content{Kind: luksKind} }),
	} {
		for _, own := range []partSpec{locked(state), open(state)} {
			for _, config := range []Config{{}, {Wipe: true}, {Undecided: "x"}, {Recipients: []string{"age1other"}}} {
				have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(own, other)}})
				want, err := Plan(config, have)
				if err != nil {
					if config.Wipe || name == "blank" {
						t.Errorf("%s, %+v: %v", name, config, err)
					}
					continue
				}
				if !config.Wipe && name != "blank" {
					t.Errorf("%s, %+v: it is used", name, config)
				}
				for _, op := range Diff(have, want, nil) {
					if m, ok := op.(Mount); ok && m.Label == layout.Data && m.Source != diskkey.MappedPath(layout.Data) {
						t.Errorf("%s, %+v: %s", name, config, op)
					}
				}
			}
		}
	}
}

// TestEncryptionOf lists what the headers of partitions mean.
func TestEncryptionOf(t *testing.T) {
	m := &diskkey.Metadata{Recovery: diskkey.Recovery{Recipients: []string{"age1example"}}}
	damaged := fmt.Errorf("%w: no copy is valid", diskkey.ErrHeader)
	for _, c := range []struct {
		name   string
		header diskkey.Header
		err    error
		want   string // "foreign", "new", "locked", or a part of the fault
	}{
		{"complete", diskkey.Header{Label: "STATE", Slots: []int{0, 1}, Metadata: m}, nil, "locked"},
		{"interrupted format", diskkey.Header{Label: diskkey.NewLabel, Slots: []int{0}}, nil, "new"},
		{"interrupted format without a key slot", diskkey.Header{Label: diskkey.NewLabel}, nil, "new"},
		{"torn header of a format", diskkey.Header{Label: diskkey.NewLabel}, damaged, "new"},
		{"interrupted reset", diskkey.Header{Label: "STATE", Metadata: m}, nil, "destroyed"},
		{"damaged header", diskkey.Header{Label: "STATE"}, damaged, "no copy is valid"},
		{"no metadata", diskkey.Header{Label: "STATE", Slots: []int{0}}, nil, "no metadata"},
		{"another system", diskkey.Header{Label: "photos", Slots: []int{0}}, nil, "foreign"},
		{"damaged header of another system", diskkey.Header{}, damaged, "foreign"},
		{"DATA in the place of STATE", diskkey.Header{Label: "DATA", Slots: []int{0, 1}, Metadata: m}, nil, "foreign"},
	} {
		e := encryptionOf(c.header, c.err, layout.State)
		got := "foreign"
		switch {
		case e != nil && e.New && e.Destroyed:
			got = "destroyed"
		case e != nil && e.New:
			got = "new"
		case e != nil && e.Fault != "":
			got = e.Fault
		case e != nil:
			got = "locked"
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// crypt records the calls of the operations.
type crypt struct {
	Crypt
	faults superblock.Errors
	err    error
}

func (c crypt) Unlock(context.Context, diskkey.Volume) (superblock.Errors, error) {
	return c.faults, c.err
}

// TestErrorsOfOpenedVolume checks that the errors which a file system has recorded are reported
// when its volume is opened, because the check that follows clears them.
func TestErrorsOfOpenedVolume(t *testing.T) {
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), locked(data))}})
	want, err := Plan(Config{}, have)
	if err != nil {
		t.Fatal(err)
	}
	var reported []FilesystemErrors
	ops := withCrypt(Diff(have, want, nil), crypt{faults: superblock.Errors{Marked: true, Count: 3}}, func(f FilesystemErrors) { reported = append(reported, f) })
	if err := ops[0].Do(t.Context()); err != nil || len(reported) != 1 || reported[0].Label != layout.State || !reported[0].Checked {
		t.Errorf("%s: %v, %+v", ops[0], err, reported)
	}
}

func TestProtection(t *testing.T) {
	for name, c := range map[string]struct {
		partitions         []partSpec
		state, data, plain bool
		faults             []string
	}{
		"plain": {imageAnd(state, data), false, false, true, nil}, "encrypted": {imageAnd(open(state), open(data)), true, true, false, nil},
		"plain DATA": {imageAnd(open(state), data), true, false, true, nil}, "plain STATE": {imageAnd(state, locked(data)), false, true, true, nil},
		"unfinished DATA": {imageAnd(open(state), unfinished(data)), true, false, false, nil}, "blank DATA": {imageAnd(open(state), blank(data)), true, false, false, nil},
		"not formatted": {image, false, false, false, nil}, "with a foreign partition": {imageAnd(foreign), false, false, false, nil},
		"damaged": {imageAnd(open(state), but(locked(data), func(p *partSpec) { p.encryption.Fault = "no copy is valid" })), true, true, false, []string{"DATA: no copy is valid"}},
	} {
		p := State{Disks: model(scenario{disk: diskSpec{table: "gpt", partitions: c.partitions}}).Disks}.Protection()
		if p.State != c.state || p.Data != c.data || p.Plain != c.plain || !slices.Equal(p.Faults, c.faults) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
