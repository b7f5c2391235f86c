package sender

import (
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedCursors checks that this version reads the cursors that released versions have
// stored, and stores them in the same form.
func TestReleasedCursors(t *testing.T) {
	was := New(Config{Name: "first", Cursors: filepath.Join(releasedtest.Copy(t, "."), "first")})
	if err := was.load(); err != nil {
		t.Fatal(err)
	}
	if !was.orderly || was.delivered["audit"] != 4711 || was.sent["events"] != 12 {
		t.Errorf("%+v", was.stored)
	}
	dir := t.TempDir()
	is := New(Config{Name: "first", Cursors: filepath.Join(dir, "first")})
	if err := is.store(was.stored); err != nil {
		t.Fatal(err)
	}
	releasedtest.Compare(t, ".", dir)
}
