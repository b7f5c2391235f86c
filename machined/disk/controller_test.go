package disk

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// TestEndPhaseBeforeMount checks that the time in which the TPM releases keys ends before the
// operations on volumes that are not encrypted, and after those that need a key. If the end fails,
// nothing is mounted.
func TestEndPhaseBeforeMount(t *testing.T) {
	recipients := Config{Recipients: []string{"age1example"}}
	for _, c := range []struct {
		name   string
		config Config
		disk   []partSpec
		ends   bool
	}{
		{"plain", Config{}, imageAnd(state, data), true},
		{"plain, recipients", recipients, imageAnd(state, data), true},
		{"first boot without recipients", Config{}, image, true},
		{"open", Config{}, imageAnd(open(state), open(data)), true},
		{"first boot", recipients, image, false},
		{"locked", Config{}, imageAnd(locked(state), locked(data)), false},
		{"DATA is locked", Config{}, imageAnd(open(state), locked(data)), false},
		{"DATA is blank", Config{}, imageAnd(open(state), blank(data)), false},
	} {
		for _, failure := range []error{nil, errors.New("the TPM does not answer")} {
			calls := 0
			controller := New(Deps{EndPhase: func(context.Context) error { calls++; return failure }})
			ops, err := controller.plan(t.Context(), c.config, model(scenario{disk: diskSpec{table: "gpt", partitions: c.disk}}), nil)
			if (calls == 1) != c.ends || calls > 1 {
				t.Errorf("%s: the phase ends %d times before the operations", c.name, calls)
			}
			if c.ends && !errors.Is(err, failure) || !c.ends && err != nil || (len(ops) > 0) != (err == nil) {
				t.Errorf("%s: %v, and %d operations", c.name, err, len(ops))
			}
		}
	}
}

// broken is an access to encrypted volumes that fails to destroy the keys of DATA.
type broken struct {
	Crypt
	destroyed *[]string
}

func (b broken) DestroyKeys(_ context.Context, v diskkey.Volume) error {
	*b.destroyed = append(*b.destroyed, v.Label)
	if v.Label == layout.Data {
		return errors.New("input/output error")
	}
	return nil
}

// TestResetDestroysAllKeys checks that a failure to destroy the keys of DATA does not keep those of
// STATE, and that nothing is wiped afterwards.
func TestResetDestroysAllKeys(t *testing.T) {
	var destroyed []string
	c := New(Deps{Console: func(string) {}})
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(locked(state), locked(data))}})
	ops := withCrypt(Reset(have, []string{layout.Data, layout.State}, nil), broken{destroyed: &destroyed}, nil)
	for i, op := range ops {
		if _, keys := op.(DestroyKeys); !keys {
			ops[i] = refused{t}
		}
	}
	if err := c.reset(t.Context(), ops); err == nil || !slices.Equal(destroyed, []string{layout.Data, layout.State}) {
		t.Errorf("the keys of %q are destroyed, and the reset fails with %v", destroyed, err)
	}
}

// refused is an operation that must not run.
type refused struct{ t *testing.T }

func (refused) String() string { return "an operation after a failure" }
func (r refused) Do(context.Context) error {
	r.t.Errorf("%s runs", r)
	return nil
}

var _ reconcile.Op = refused{}

// TestUpdateErrors checks that a new error causes a single line on the console, and is in the state
// of the disks. An error that the check at boot has repaired stays visible.
func TestUpdateErrors(t *testing.T) {
	var lines []string
	c := New(Deps{Console: func(line string) { lines = append(lines, line) }})
	sound := FilesystemErrors{Label: "DATA", Device: "/dev/vda5"}
	broken := sound
	broken.Faults = superblock.Errors{Marked: true, Count: 1, First: superblock.Error{Function: "ext4_lookup"}}
	repaired := broken
	repaired.Checked = true
	for _, step := range []struct {
		name  string
		boot  []FilesystemErrors // state before the read, after a boot; nil: unchanged
		read  FilesystemErrors
		want  []FilesystemErrors
		lines int
	}{
		{"sound", nil, sound, nil, 0},
		{"broken", nil, broken, []FilesystemErrors{broken}, 1},
		{"still broken", nil, broken, []FilesystemErrors{broken}, 1},
		{"repaired", []FilesystemErrors{repaired}, sound, []FilesystemErrors{repaired}, 1},
		{"broken again", nil, broken, []FilesystemErrors{broken}, 2},
	} {
		if step.boot != nil {
			c.state.Set(State{Filesystems: step.boot})
		}
		c.updateErrors([]FilesystemErrors{step.read})
		if now, _ := c.state.Get(); !slices.Equal(now.Filesystems, step.want) || len(lines) != step.lines {
			t.Errorf("%s: %+v, %q", step.name, now.Filesystems, lines)
		}
	}
}

// TestOwnDisk checks that a read that examines only the system disk retains the examination of the
// other disks.
func TestOwnDisk(t *testing.T) {
	of := func(path, kind string) Disk {
		return Disk{Path: path, Boot: path == "/dev/vda", Table: Table{Kind: kind}}
	}
	known := []Disk{of("/dev/vda", "gpt"), of("/dev/vdb", "a whole-disk ext4")}
	read := []Disk{of("/dev/vda", "gpt"), of("/dev/vdb", "unexamined"), of("/dev/vdc", "unexamined")}
	read[0].Size = 5
	got := mergeDisks(read, known)
	if len(got) != 3 || got[0].Size != 5 || got[1].Table.Kind != "a whole-disk ext4" || got[2].Table.Kind != "unexamined" {
		t.Errorf("mergeDisks returns %+v", got)
	}
}

// TestStoreDropsOlderRead checks that a read of Watch that began before the last read of SetUp does
// not replace the result of SetUp. Watch then reads the disks again.
func TestStoreDropsOlderRead(t *testing.T) {
	c := New(Deps{})
	c.state.Set(State{Disks: []Disk{{Path: "/dev/vda"}}})
	began := c.setUps.Load()
	c.setUps.Add(1)
	c.store([]Disk{{Path: "/dev/old"}}, began)
	if got, _ := c.state.Get(); got.Disks[0].Path != "/dev/vda" {
		t.Errorf("an older read replaced the disks with %v", got.Disks)
	}
	select {
	case <-c.changed:
	default:
		t.Error("Watch does not read the disks again")
	}
	c.store([]Disk{{Path: "/dev/vdb"}}, c.setUps.Load())
	if got, _ := c.state.Get(); got.Disks[0].Path != "/dev/vdb" {
		t.Errorf("a new read is not stored: %v", got.Disks)
	}
}
