package upgrade

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/slot"
)

func TestStore(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "upgrade")}
	if r, err := s.Load(); err != nil || !reflect.DeepEqual(r, slot.Record{}) {
		t.Errorf("without a record: %+v, %v", r, err)
	}
	want := slot.Record{From: "1", To: "2", Phase: slot.Trial, Reason: "because", Tries: 2, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Log: []string{"a", "b"}}
	if err := s.Save(want); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Load(); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("the loaded record is %+v, %v", r, err)
	}
	if err := os.WriteFile(s.record(), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Load(); err == nil || !reflect.DeepEqual(r, slot.Record{}) {
		t.Errorf("a damaged record: %+v, %v", r, err)
	}
	if text, err := s.SavedConfiguration("1"); text != nil || err != nil {
		t.Errorf("without a configuration: %q, %v", text, err)
	}
	if err := s.SaveConfiguration("1", []byte("a: b")); err != nil {
		t.Fatal(err)
	}
	if text, err := s.SavedConfiguration("1"); string(text) != "a: b" || err != nil {
		t.Errorf("the stored configuration is %q, %v", text, err)
	}
	for _, text := range []string{"a: c", "a: d"} { // stored before and after the drain
		if err := s.SaveConfiguration("2", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.SavedConfiguration("2"); string(got) != text || err != nil {
			t.Errorf("the configuration that was stored last is %q, %v", got, err)
		}
	}
	if text, err := s.SavedConfiguration("1"); text != nil || err != nil {
		t.Errorf("the configuration of a version whose slot was overwritten: %q, %v", text, err)
	}
	// SaveConfiguration has not removed the record, which is garbage here.
	if r, err := s.Load(); err == nil {
		t.Errorf("the damaged record was replaced: %+v", r)
	}
	if lines := s.SavedLog(); lines != nil {
		t.Errorf("without a log: %q", lines)
	}
	log := []string{"first", "last"}
	if err := s.SaveLog(log); err != nil || !slices.Equal(s.SavedLog(), log) {
		t.Errorf("the stored log is %q, %v", s.SavedLog(), err)
	}
	for range 2 {
		if err := s.DropLog(); err != nil || s.SavedLog() != nil {
			t.Errorf("after DropLog, the log is %q, %v", s.SavedLog(), err)
		}
	}
}

// TestEpochFloor checks that RaiseEpochFloor never lowers the floor, that the floor survives a
// change of the record, and that an unreadable floor is an error and not 0. RaiseEpochFloor
// replaces an unreadable floor.
func TestEpochFloor(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "upgrade")}
	for _, c := range []struct{ raise, want int }{{0, 0}, {2, 2}, {1, 2}, {2, 2}, {5, 5}, {0, 5}} {
		if err := s.RaiseEpochFloor(c.raise); err != nil {
			t.Fatal(err)
		}
		if got, err := (Store{Dir: s.Dir}).EpochFloor(); err != nil || got != c.want {
			t.Errorf("after %d: %d, %v", c.raise, got, err)
		}
	}
	if err := s.Save(slot.Record{From: "1", To: "2", Phase: slot.RolledBack}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.EpochFloor(); err != nil || got != 5 {
		t.Errorf("after another record: %d, %v", got, err)
	}
	for _, text := range []string{"", "{", `{"epoch": -1}`, `{"epoch": "5"}`} {
		if err := os.WriteFile(s.floor(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.EpochFloor(); err == nil {
			t.Errorf("a file with %q is read as floor %d", text, got)
		}
		if err := s.RaiseEpochFloor(3); err != nil {
			t.Error(err)
		}
		if got, err := s.EpochFloor(); err != nil || got != 3 {
			t.Errorf("after %q: %d, %v", text, got, err)
		}
	}
}
