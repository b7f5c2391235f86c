package upgrade

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/slot"
)

// TestOneSector: the folder of the entries fits into one sector of 512 bytes, so that a rename in it is one write
// (docs/decisions/0012-upgrade-order.md). FAT takes a slot of 32 bytes for the short name and one for each 13 characters of the
// long one (Microsoft's FAT specification, "Long directory entries").
func TestOneSector(t *testing.T) {
	const version = "999.999.999" // longer ones are hardly wanted
	slots := 2                    // "." and ".."
	for _, name := range []string{
		slot.Entry{Version: version, Trial: true, Done: slot.Tries}.Name(), // what failed, or was gone back from
		slot.Entry{Version: version, Trial: true, Left: slot.Tries}.Name(),
		version + unfinished,
	} {
		slots += 1 + (len(name)+12)/13
	}
	if slots > 512/32 {
		t.Errorf("%d slots", slots)
	}
}

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
}

// TestEntries: what is listed, kept, and forgotten of a folder. The same functions work on the mounted ESP.
func TestEntries(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"orlop-1.0.0.efi", "orlop-1.1.0+0-3.efi", "1.2.0.new", "other.efi"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := entries(dir)
	if want := []slot.Entry{{Version: "1.0.0"}, {Version: "1.1.0", Trial: true, Done: 3}}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, %v", all, err)
	}
	if err := others(dir, "1.0.0", os.Remove); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(dir + "/*")
	if want := []string{filepath.Join(dir, "orlop-1.0.0.efi"), filepath.Join(dir, "other.efi")}; err != nil || !reflect.DeepEqual(left, want) {
		t.Errorf("%q, %v", left, err)
	}
}
