package slot

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestEntry(t *testing.T) {
	for name, want := range map[string]Entry{
		"orlop-1.2.0.efi":         {Version: "1.2.0"},
		"orlop-1.2.0+3-0.efi":     {Version: "1.2.0", Trial: true, Left: 3},
		"orlop-1.2.0+0-3.efi":     {Version: "1.2.0", Trial: true, Tries: 3},
		"orlop-0.3.0-dev+2.efi":   {Version: "0.3.0-dev", Trial: true, Left: 2},
		"orlop-1.0.0~rc1+1-2.efi": {Version: "1.0.0~rc1", Trial: true, Left: 1, Tries: 2},
	} {
		got, ok := ParseEntry(name)
		if !ok || got != want {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
		if again, ok := ParseEntry(got.Name()); !ok || again != got {
			t.Errorf("%s: Name returns %s, which ParseEntry parses as %+v", name, got.Name(), again)
		}
	}
	for _, name := range []string{"orlop.efi", "orlop-1.2.0.efi.new", "linux-6.1.efi", "orlop-1.2.0+x.efi", "orlop-1.2.0+99999999999999999999-0.efi"} {
		if e, ok := ParseEntry(name); ok {
			t.Errorf("%s is parsed as %+v", name, e)
		}
	}
}

// TestCompareAsTheLoader compares the examples of the UAPI group's Version Format Specification,
// and separators in unusual places. The expected results are from systemd 252 (systemd-analyze
// compare-versions), which has the same code as the boot loader.
func TestCompareAsTheLoader(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"11", "11", 0}, {"systemd-123", "systemd-123", 0}, {"bar-123", "foo-123", -1}, {"123a", "123", 1},
		{"123.a", "123", 1}, {"123.a", "123.b", -1}, {"123a", "123.a", 1}, {"11α", "11β", 0},
		{"A", "a", -1}, {"", "0", -1}, {"0.", "0", 1}, {"0.0", "0", 1},
		{"0", "~", 1}, {"", "~", 1}, {"1_", "1", 0}, {"_1", "1", 0},
		{"1_", "1.2", -1}, {"1_2_3", "1.3.3", 1}, {"1+", "1", 0}, {"1+", "1.2", -1},
		{"1~~", "1~", 1}, {"1~~1", "1~1", -1}, {"1~~rc", "1~", 1}, {"1~~rc1", "1~rc1", -1},
		{"1~", "1", -1}, {"1~~", "1", -1}, {"1~~~", "1~~", 1}, {"1~-1", "1~1", -1},
		{"1.~1", "1.1", -1}, {"1~.~1", "1~.1", -1}, {"1~~0", "1~0", -1}, {"1^~1", "1^1", -1},
		{"1^post1", "1", 1}, {"1^post1", "1.1", -1}, {"1^1", "1-1", 1}, {"1-", "1", 1},
		{"1--1", "1-1", -1}, {"1..1", "1.1", -1}, {"1-.1", "1-1", -1}, {"1.-1", "1.1", -1},
		{"007", "7", 0}, {"1.0", "1.00", 0}, {"1.0", "1.", 1}, {"1a", "1.1", 1},
		{"1.a", "1.1", -1}, {"122.1", "123~rc1-1", -1}, {"123~rc1-1", "123", -1}, {"123", "123-a", -1},
		{"123-a", "123-a.1", -1}, {"123-a.1", "123-1", -1}, {"123-1", "123-1.1", -1}, {"123-1.1", "123^post1", -1},
		{"123^post1", "123.a-1", -1}, {"123.a-1", "123.1-1", -1}, {"123.1-1", "123a-1", -1}, {"123a-1", "124-1", -1},
	} {
		if got := Compare(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
		if got := Compare(c.b, c.a); got != -c.want {
			t.Errorf("%q and %q: %d, want %d", c.b, c.a, got, -c.want)
		}
	}
}

// FuzzCompare checks that Compare terminates and is antisymmetric, and that a version equals
// itself.
func FuzzCompare(f *testing.F) {
	f.Add("1~~", "1~")
	f.Add("1.0^a-~.", "1.0_")
	f.Fuzz(func(t *testing.T, a, b string) {
		if forth, back := Compare(a, b), Compare(b, a); forth != -back || Compare(a, a) != 0 {
			t.Errorf("Compare(%q, %q) is %d, and %d with exchanged arguments", a, b, forth, back)
		}
	})
}

func TestCompare(t *testing.T) {
	// These versions are in ascending order, as `systemd-analyze compare-versions` reports.
	ascending := []string{"0.9", "1.0.0~rc1", "1.0.0~rc2", "1.0.0", "1.0.0-1", "1.0.1", "1.2.0", "1.10.0", "2"}
	for i, a := range ascending {
		for j, b := range ascending {
			got := Compare(a, b)
			if want := i - j; got < 0 != (want < 0) || got > 0 != (want > 0) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
}

func TestFirst(t *testing.T) {
	good, trial, failed := Entry{Version: "1"}, Entry{Version: "2", Trial: true, Left: 1, Tries: 2}, Entry{Version: "3", Trial: true, Tries: 3}
	for _, c := range []struct {
		all  []Entry
		want Entry
	}{
		{[]Entry{good, trial, failed}, trial},
		{[]Entry{good, failed}, good},
		{[]Entry{failed}, failed},
	} {
		if got, ok := First(c.all); !ok || got != c.want {
			t.Errorf("First of %v: %v", c.all, got)
		}
	}
	if _, ok := First(nil); ok {
		t.Error("First of no entries returned an entry")
	}
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestStep checks each row of the table of Step.
func TestStep(t *testing.T) {
	record := func(p Phase) Record { return Record{From: "1", To: "2", Phase: p} }
	good, trial, failed := Entry{Version: "2"}, Entry{Version: "2", Trial: true, Left: 1, Tries: 2}, Entry{Version: "2", Trial: true, Tries: 3}
	old := Entry{Version: "1"}
	booted := func(all ...Entry) Event { return Booted{Entries: all, At: at} }
	for _, c := range []struct {
		what    string
		running string
		before  Record
		event   Event
		phase   Phase
		reason  string // a part of the reason in the record
		actions []Action
		refused string // a part of the error
	}{
		{"an upgrade begins", "1", Record{}, Started{To: "2", At: at}, Writing, "", nil, ""},
		{"an upgrade after a committed upgrade", "2", record(Committed), Started{To: "3", At: at}, Writing, "", nil, ""},
		{"the same upgrade after a power cut", "1", record(Writing), Started{To: "2", At: at}, Writing, "", nil, ""},
		{"the same upgrade after its rollback", "1", record(RolledBack), Started{To: "2", At: at}, Writing, "", nil, ""},
		{"another upgrade before the reboot", "1", record(Written), Started{To: "3", At: at}, Written, "", nil, "wait until"},
		{"an upgrade during a trial", "2", record(Trial), Started{To: "3", At: at}, Trial, "", nil, "wait until"},
		{"an upgrade to the running version", "2", record(Committed), Started{To: "2", At: at}, Committed, "", nil, "running already"},
		{"an upgrade to an older version", "2", record(Committed), Started{To: "1.9", At: at}, Committed, "", nil, "older than 2"},
		{"a higher epoch", "1", Record{}, Started{To: "2", At: at, Epoch: 4, Floor: 3}, Writing, "", nil, ""},
		{"the same epoch", "1", Record{}, Started{To: "2", At: at, Epoch: 3, Floor: 3}, Writing, "", nil, ""},
		{"a lower epoch", "1", record(RolledBack), Started{To: "2", At: at, Epoch: 2, Floor: 3}, RolledBack, "", nil, "version 2 has epoch 2, and one with epoch 3 was committed"},
		{"a version without an epoch", "1", Record{}, Started{To: "2", At: at, Floor: 1}, "", "", nil, "has epoch 0"},
		{"the write fails", "1", record(Writing), WriteFailed{Reason: "disk full", At: at}, Failed, "disk full", nil, ""},
		{"the entry is written", "1", record(Writing), EntryWritten{}, Written, "", []Action{Reboot{Why: "upgrade from 1 to 2"}}, ""},
		{"an entry without an upgrade", "2", record(Committed), EntryWritten{}, Committed, "", nil, ""},
		{"an entry during a trial", "2", record(Trial), EntryWritten{}, Trial, "", nil, ""},
		{"power cut after the commit of the entry, before the record of the upgrade", "2", record(Writing), booted(old, good), Committed, "", nil, ""},
		{"power cut between entry and record, version 2 runs without an entry", "2", record(Writing), booted(old), Trial, "", []Action{Watch{}}, ""},
		{"power cut between entry and record, version 2 did not boot", "1", record(Writing), booted(old, failed), RolledBack, "did not boot in 3 tries", []Action{RestoreConfiguration{Version: "1"}}, ""},
		{"the first try", "2", record(Written), booted(old, trial), Trial, "", []Action{Watch{}}, ""},
		{"another try", "2", record(Trial), booted(old, trial), Trial, "", []Action{Watch{}}, ""},
		{"the last try", "2", record(Trial), booted(old, failed), Trial, "", []Action{Watch{}}, ""},
		{"a try without a record", "2", Record{}, booted(old, trial), Trial, "", []Action{Watch{}}, ""},
		{"a try whose entry is missing", "2", record(Written), booted(old), Trial, "", []Action{Watch{}}, ""},
		{"power cut between the rename of the entry and the record", "2", record(Trial), booted(old, good), Committed, "", nil, ""},
		{"rollback, version 2 had started", "1", record(Trial), booted(old, failed), RolledBack, "did not boot in 3 tries", []Action{RestoreConfiguration{Version: "1"}}, ""},
		{"rollback, version 2 never started", "1", record(Written), booted(old, failed), RolledBack, "did not boot in 3 tries", []Action{RestoreConfiguration{Version: "1"}}, ""},
		{"rollback, the entry of version 2 is missing", "1", record(Trial), booted(old), RolledBack, "entry of version 2 is missing", []Action{RestoreConfiguration{Version: "1"}}, ""},
		{"power cut before the entry is written", "1", record(Writing), booted(old), Failed, "was interrupted", nil, ""},
		{"the boot loader starts version 1 although version 2 has a try left", "1", record(Written), booted(old, trial), Written, "", nil, ""},
		{"an ordinary boot", "2", record(Committed), booted(old, good), Committed, "", nil, ""},
		{"the first boot of a machine", "1", Record{}, booted(old), "", "", nil, ""},
		{"the upgrade probes pass", "2", record(Trial), ChecksPassed{At: at}, Committed, "", []Action{Rename{To: good}}, ""},
		{"the upgrade probes pass, and there is no trial", "2", record(Committed), ChecksPassed{At: at}, Committed, "", nil, ""},
		{"an upgrade probe fails", "2", record(Trial), ChecksFailed{Reason: "node is not Ready"}, Trial, "not Ready",
			[]Action{Rename{To: Entry{Version: "2", Trial: true, Tries: 1}}, Reboot{Why: "node is not Ready"}}, ""},
		{"rollback by an operator", "2", record(Committed), RollbackRequested{Entries: []Entry{old, good}, Reason: "asked", At: at}, Trial, "asked",
			[]Action{Rename{To: Entry{Version: "2", Trial: true, Tries: 1}}, Reboot{Why: "asked"}}, ""},
		{"rollback to a named version", "2", record(Committed), RollbackRequested{Entries: []Entry{old, good}, To: "1", Reason: "asked", At: at}, Trial, "asked",
			[]Action{Rename{To: Entry{Version: "2", Trial: true, Tries: 1}}, Reboot{Why: "asked"}}, ""},
		{"rollback to a version that is in no slot", "2", record(Committed), RollbackRequested{Entries: []Entry{old, good}, To: "0.9", At: at}, Committed, "", nil,
			"version 0.9 is wanted, and the other slot has version 1"},
		{"rollback to a version with the same epoch", "2", record(Committed), RollbackRequested{Entries: []Entry{old, good}, Reason: "asked", At: at, Epochs: map[string]int{"1": 3}, Floor: 3}, Trial, "asked",
			[]Action{Rename{To: Entry{Version: "2", Trial: true, Tries: 1}}, Reboot{Why: "asked"}}, ""},
		{"rollback to a version with a lower epoch", "2", record(Committed), RollbackRequested{Entries: []Entry{old, good}, Reason: "asked", At: at, Epochs: map[string]int{"1": 2, "2": 3}, Floor: 3}, Committed, "", nil,
			"version 1 has epoch 2, and one with epoch 3 was committed"},
		{"rollback to a version without an epoch", "2", record(Committed), RollbackRequested{Entries: []Entry{old, good}, At: at, Epochs: map[string]int{"2": 1}, Floor: 1}, Committed, "", nil, "has epoch 0"},
		{"automatic rollback, which does not compare epochs", "1", record(Trial), booted(old, failed), RolledBack, "did not boot", []Action{RestoreConfiguration{Version: "1"}}, ""},
		{"rollback without another version", "2", record(Committed), RollbackRequested{Entries: []Entry{good}, At: at}, Committed, "", nil, "no other version"},
		{"rollback to a version that failed", "1", record(RolledBack), RollbackRequested{Entries: []Entry{old, failed}, At: at}, RolledBack, "", nil, "no other version"},
	} {
		got, actions, err := Step(c.running, c.before, c.event)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || !reflect.DeepEqual(got, c.before) || actions != nil {
				t.Errorf("%s: %v, record %+v, %v", c.what, err, got, actions)
			}
			continue
		}
		if err != nil || got.Phase != c.phase || !strings.Contains(got.Reason, c.reason) || c.reason == "" && got.Reason != "" || !slices.Equal(actions, c.actions) {
			t.Errorf("%s: record %+v, %v, %v", c.what, got, actions, err)
		}
	}
}

// TestAlwaysAWayBack checks that a machine whose new version never boots returns to the old
// version, but only after all tries.
func TestAlwaysAWayBack(t *testing.T) {
	old, next := Entry{Version: "1"}, Entry{Version: "2", Trial: true, Left: Tries}
	entries := []Entry{old, next}
	for range Tries + 2 { // every boot of version 2 fails
		first, _ := First(entries)
		if first.Version == "1" {
			if !entries[1].Failed() {
				t.Fatal("the machine rolled back before all tries were used")
			}
			return
		}
		// The boot loader counts the try.
		entries[1].Left, entries[1].Tries = entries[1].Left-1, entries[1].Tries+1
	}
	t.Error("the machine never rolled back")
}

// TestLog checks that the record retains the log of the failed probes. If there is no such log, the
// record gets the last log lines of the failed version.
func TestLog(t *testing.T) {
	failed := []Entry{{Version: "1"}, {Version: "2", Trial: true, Tries: 3}}
	for _, c := range []struct{ own, left, want []string }{
		{[]string{"gave up"}, []string{"tail"}, []string{"gave up"}},
		{nil, []string{"tail"}, []string{"tail"}},
	} {
		r, _, err := Step("1", Record{From: "1", To: "2", Phase: Trial, Log: c.own}, Booted{Entries: failed, At: at, Log: c.left})
		if err != nil || r.Phase != RolledBack || !slices.Equal(r.Log, c.want) {
			t.Errorf("%+v, %v; want %q", r, err, c.want)
		}
	}
}

// TestLeaving checks that version 1 is being replaced after the next version is written, until the
// next version is committed or rolled back.
func TestLeaving(t *testing.T) {
	for _, c := range []struct {
		r    Record
		want bool
	}{
		{Record{}, false},
		{Record{From: "1", To: "2", Phase: Writing}, false},
		{Record{From: "1", To: "2", Phase: Written}, true},
		{Record{From: "1", To: "2", Phase: Trial}, true},
		{Record{From: "1", To: "2", Phase: RolledBack}, false},
		{Record{From: "0", To: "1", Phase: Trial}, false},
	} {
		if got := c.r.BeingReplaced("1"); got != c.want {
			t.Errorf("%+v: %t", c.r, got)
		}
	}
}
