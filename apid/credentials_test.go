package apid

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMissingCredentials checks that apid is not ready while one of its files is missing, keeps the
// old credentials in use, and is ready again after the file has returned.
func TestMissingCredentials(t *testing.T) {
	b := newTestAPI(t)
	s := newStore(b.dir)
	before, err := s.get()
	if err != nil {
		t.Fatal(err)
	}
	file, aside := filepath.Join(b.dir, files[0]), filepath.Join(t.TempDir(), "aside")
	if err := os.Rename(file, aside); err != nil {
		t.Fatal(err)
	}
	if s.problem() == nil {
		t.Errorf("%s is missing, and apid reports no problem", file)
	}
	if during, err := s.get(); err != nil || during != before {
		t.Errorf("%s is missing: the old credentials are not in use: %v", file, err)
	}
	if err := os.Rename(aside, file); err != nil {
		t.Fatal(err)
	}
	if err := s.problem(); err != nil {
		t.Errorf("%s has returned: %v", file, err)
	}
}
