package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPublish checks that all users can read the file, and that Publish creates no directory.
func TestPublish(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0o077))
	if err := Publish(filepath.Join(dir, "missing"), "hosts.json", []byte("[]")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Publish into a directory that does not exist: %v", err)
	}
	for _, content := range []string{"[]", "[1]"} {
		if err := Publish(dir, "hosts.json", []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "hosts.json")); err != nil || string(got) != content {
			t.Errorf("%s, %v", got, err)
		}
		if info, err := os.Stat(filepath.Join(dir, "hosts.json")); err != nil || info.Mode() != 0o444 {
			t.Errorf("%v, %v: the mode is not 0444, so another user cannot read the file", info, err)
		}
	}
}
