package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReadAhead checks that ReadAhead reports each path that it cannot read, here a missing file
// and a directory, and continues with the next path.
func TestReadAhead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "program")
	if err := os.WriteFile(file, make([]byte, 300<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	var failures []error
	ReadAhead(t.Context(), []string{filepath.Join(dir, "missing"), file, dir}, func(err error) { failures = append(failures, err) })
	if len(failures) != 2 || !errors.Is(failures[0], fs.ErrNotExist) {
		t.Errorf("%v", failures)
	}
}
