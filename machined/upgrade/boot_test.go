package upgrade

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/slot"
)

// TestEntriesUnread checks which versions are on trial while the ESP is unreadable: the version
// whose tries the boot loader counts, or the new version of an unfinished record. No other version
// is on trial.
func TestEntriesUnread(t *testing.T) {
	trial := slot.Entry{Version: "2.0.0", Trial: true, Left: 2, Tries: 1}
	for _, c := range []struct {
		what    string
		running string
		record  slot.Record
		counted slot.Entry
		known   bool
		want    slot.Phase
	}{
		{"the loader counts, and the record is written", "2.0.0", slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Written}, trial, true, slot.Trial},
		{"the loader counts, and the record is lost", "2.0.0", slot.Record{}, trial, true, slot.Trial},
		{"the firmware stores no variables, and the record is written", "2.0.0", slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Written}, slot.Entry{}, false, slot.Trial},
		{"the previous version runs", "1.0.0", slot.Record{From: "1.0.0", To: "2.0.0", Phase: slot.Trial}, slot.Entry{}, false, ""},
		{"no upgrade", "1.0.0", slot.Record{}, slot.Entry{}, false, ""},
		{"the loader counts another version", "1.0.0", slot.Record{}, trial, true, ""},
	} {
		entries, ok := entriesUnread(c.running, c.record, c.counted, c.known)
		if ok != (c.want != "") {
			t.Errorf("%s: a version is on trial: %v", c.what, ok)
		}
		if !ok {
			continue
		}
		r, actions, err := slot.Step(c.running, c.record, slot.Booted{Entries: entries})
		if err != nil || r.Phase != c.want || len(actions) != 1 || actions[0] != (slot.Watch{}) {
			t.Errorf("%s: the record is %+v, the actions are %v, %v", c.what, r, actions, err)
		}
	}
}
