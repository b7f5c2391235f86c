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
		t.Errorf("nothing: %+v, %v", r, err)
	}
	want := slot.Record{From: "1", To: "2", Phase: slot.Trial, Reason: "because", Tries: 2, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Log: []string{"a", "b"}}
	if err := s.Save(want); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Load(); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(s.record(), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Load(); err == nil || !reflect.DeepEqual(r, slot.Record{}) {
		t.Errorf("garbage: %+v, %v", r, err)
	}
	if text, err := s.Kept("1"); text != nil || err != nil {
		t.Errorf("no configuration: %q, %v", text, err)
	}
	if err := s.Keep("1", []byte("a: b")); err != nil {
		t.Fatal(err)
	}
	if text, err := s.Kept("1"); string(text) != "a: b" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if lines := s.KeptLog(); lines != nil {
		t.Errorf("no log: %q", lines)
	}
	log := []string{"first", "last"}
	if err := s.KeepLog(log); err != nil || !slices.Equal(s.KeptLog(), log) {
		t.Errorf("%q, %v", s.KeptLog(), err)
	}
	for range 2 {
		if err := s.DropLog(); err != nil || s.KeptLog() != nil {
			t.Errorf("%q, %v", s.KeptLog(), err)
		}
	}
}
