package upgrade

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// testMachine is a machine without a disk that runs version 2.0.0 with release epoch 7. Every
// access to its ESP fails.
type testMachine struct {
	*Upgrade
	records Store
	steps   []string // calls of Deps that change the machine, each with the stored phase
	restore error    // result of Configuration.Restore
}

// fakeFirmware rejects boot images that contain the text refuses. If refuses is empty, it accepts
// all images.
type fakeFirmware struct{ refuses string }

var errFirmware = errors.New("the firmware would not start it")

func (f fakeFirmware) CheckBytes(_ context.Context, image []byte) error {
	if f.refuses != "" && bytes.Contains(image, []byte(f.refuses)) {
		return errFirmware
	}
	return nil
}

func (f fakeFirmware) Check(ctx context.Context, image *os.File) error {
	content, err := io.ReadAll(image)
	return errors.Join(err, f.CheckBytes(ctx, content))
}

func newTestMachine(t *testing.T, r slot.Record) *testMachine {
	t.Helper()
	m := &testMachine{records: Store{Dir: filepath.Join(t.TempDir(), "upgrade")}}
	step := func(name string) {
		stored, err := m.records.Load()
		if err != nil {
			t.Fatal(err)
		}
		m.steps = append(m.steps, name+" while "+string(stored.Phase))
	}
	m.Upgrade = New(Deps{
		Release: func() buildinfo.Release { return buildinfo.Release{Version: "2.0.0", Epoch: 7} },
		Disk: Disk{
			Slots:          func() (Slot, error) { return Slot{}, ErrNoSlots },
			StorageProblem: func() string { return "" },
			Firmware:       fakeFirmware{},
		},
		Files: Files{Records: m.records, Inbox: Inbox{Dir: t.TempDir()}},
		Configuration: Configuration{
			DropStaged: func() error { step("drop staged"); return nil },
			Restore:    func(documents []byte) error { step("restore " + string(documents)); return m.restore },
		},
		Reboot:  func(string) error { step("reboot"); return nil },
		Event:   func(string, string) {},
		Console: func(string) {},
	})
	if err := m.records.Save(r); err != nil {
		t.Fatal(err)
	}
	m.Controller.progress.setRecord(r)
	return m
}

// blockRecord puts a file in the place of the directory of the records, so saving a record fails.
func (m *testMachine) blockRecord(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(m.records.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.records.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

var (
	upgrading = slot.Record{From: "2.0.0", To: "3.0.0", Phase: slot.Writing}
	onTrial   = slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Trial, Tries: 1}
	reverting = slot.Record{From: "2.0.0", To: "3.0.0", Phase: slot.Trial, Reason: "unhealthy"}
	failed    = slot.Entry{Version: "3.0.0", Trial: true, Tries: 1}
)

// TestHandle checks the order in which handle performs the actions of an event, and its reactions
// to errors.
func TestHandle(t *testing.T) {
	for _, c := range []struct {
		name    string
		record  slot.Record
		event   slot.Event
		blocked bool // the record cannot be stored
		restore error
		steps   []string
		phase   slot.Phase // phase after the event
		err     string     // part of the error; empty if there is no error
	}{
		{
			name: "the entry is written", record: upgrading, event: slot.EntryWritten{},
			steps: []string{"reboot while written"}, phase: slot.Written,
		},
		{
			name: "the configuration is restored before the record says so", record: reverting, event: slot.Booted{Entries: []slot.Entry{failed}},
			steps: []string{"drop staged while trial", "restore a: b while trial"}, phase: slot.RolledBack,
		},
		{
			name: "the configuration cannot be restored", record: reverting, event: slot.Booted{Entries: []slot.Entry{failed}}, restore: errors.New("full"),
			steps: []string{"drop staged while trial", "restore a: b while trial"}, phase: slot.RolledBack,
		},
		{
			name: "a commit whose entry cannot be renamed", record: onTrial, event: slot.ChecksPassed{},
			phase: slot.Trial, err: ErrNoSlots.Error(),
		},
		{
			name: "a boot with an entry that is already committed", record: onTrial, event: slot.Booted{Entries: []slot.Entry{{Version: "2.0.0"}}},
			phase: slot.Committed,
		},
		{
			name: "a commit whose floor cannot be stored", record: onTrial, event: slot.Booted{Entries: []slot.Entry{{Version: "2.0.0"}}}, blocked: true,
			phase: slot.Trial, err: "upgrade: cannot store",
		},
		{
			name: "a failed version whose entry cannot be renamed", record: onTrial, event: slot.ChecksFailed{Reason: "unhealthy"},
			steps: []string{"reboot while trial"}, phase: slot.Trial, err: ErrNoSlots.Error(),
		},
		{
			name: "a rollback whose entry cannot be renamed", record: slot.Record{}, event: slot.RollbackRequested{Entries: []slot.Entry{{Version: "1.0.0"}}},
			phase: slot.Trial, err: ErrNoSlots.Error(),
		},
		{
			name: "an event that the record does not permit", record: onTrial, event: slot.Started{To: "3.0.0", Epoch: 7},
			phase: slot.Trial, err: "wait until it is committed",
		},
		{
			name: "an upgrade whose record cannot be stored", record: slot.Record{}, event: slot.Started{To: "3.0.0", Epoch: 7}, blocked: true,
			phase: "", err: "upgrade: cannot store",
		},
	} {
		m := newTestMachine(t, c.record)
		if err := m.records.SaveConfiguration("2.0.0", []byte("a: b")); err != nil {
			t.Fatal(err)
		}
		if c.blocked {
			m.blockRecord(t)
		}
		m.restore = c.restore
		err := m.Controller.handle(t.Context(), c.event)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if !slices.Equal(m.steps, c.steps) {
			t.Errorf("%s: the steps are %q, want %q", c.name, m.steps, c.steps)
		}
		if got := m.Controller.Record().Phase; got != c.phase {
			t.Errorf("%s: the phase is %q, want %q", c.name, got, c.phase)
		}
		if c.blocked {
			continue
		}
		if stored, err := m.records.Load(); err != nil || stored.Phase != c.phase {
			t.Errorf("%s: stored %q, %v, want %q", c.name, stored.Phase, err, c.phase)
		}
		if floor, _ := m.records.EpochFloor(); (floor == 7) != (c.phase == slot.Committed) {
			t.Errorf("%s: the floor is %d", c.name, floor)
		}
	}
}

// fakeHealth is a HealthWatcher that returns another result after each Wait.
type fakeHealth struct {
	failed []string // results of Failed, one after the other; the last result stays
	panics string
}

func (h *fakeHealth) Failed() (*config.Config, string) {
	c := new(config.Config)
	c.Machine.Spec.Upgrade.Deadline = config.Duration(time.Hour)
	return c, h.failed[0]
}

func (h *fakeHealth) Panic() string { return h.panics }

func (h *fakeHealth) Wait(ctx context.Context) error {
	if len(h.failed) > 1 {
		h.failed = h.failed[1:]
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestAwaitResult checks that a trial ends at its deadline with the last failed check, and at once
// after a panic.
func TestAwaitResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			health fakeHealth
			want   string
		}{
			{"at the deadline", fakeHealth{failed: []string{"a", "b"}}, "version 2.0.0 did not pass its checks within 1h0m0s: b"},
			{"a failed probe", fakeHealth{failed: []string{"a", ""}}, "version 2.0.0 did not pass its checks within 1h0m0s: network: no link has an address"},
			{"after a panic", fakeHealth{failed: []string{"a"}, panics: "panicked"}, "panicked"},
		} {
			m := newTestMachine(t, onTrial)
			d := m.Controller.deps
			d.Trial.Started = time.Now().Add(100*time.Millisecond - time.Hour)
			d.Trial.Events = func() []Event { return nil }
			d.Trial.Services = supervise.NewManager(supervise.Config{})
			d.Trial.KernelStart = func() (time.Time, error) { return time.Time{}, errors.New("no kernel") }
			d.Network.Addresses = func(*config.Config) []netip.Addr { return nil }
			e, _ := m.Controller.awaitResult(t.Context(), &c.health).(slot.ChecksFailed)
			if e.Reason != c.want {
				t.Errorf("%s: the reason is %q, want %q", c.name, e.Reason, c.want)
			}
		}
	})
}
