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
	for _, text := range []string{"a: c", "a: d"} { // it is kept once more after the pods have left
		if err := s.Keep("2", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Kept("2"); string(got) != text || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	if text, err := s.Kept("1"); text != nil || err != nil {
		t.Errorf("of a version whose slot was written over: %q, %v", text, err)
	}
	if r, err := s.Load(); err == nil { // the record, which is garbage here, is not forgotten with it
		t.Errorf("%+v", r)
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
