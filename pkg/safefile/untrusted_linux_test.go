package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadUntrusted(t *testing.T) {
	const most = 1000
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	write := func(name string, size int) {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(outside, 10)
	write(filepath.Join(dir, "good"), most)
	write(filepath.Join(dir, "large"), most+1)
	for name, target := range map[string]string{"link": "good", "escape": outside} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if text, err := ReadUntrusted(dir, "good", most); err != nil || len(text) != most {
		t.Errorf("good: %d bytes, %v", len(text), err)
	}
	for name, want := range map[string]string{
		"large": "at most", "link": "not a plain file", "escape": "not a plain file", "pipe": "not a plain file", "directory": "not a plain file",
		"none": "has no file none", "../" + filepath.Base(filepath.Dir(outside)) + "/secret": "cannot open",
	} {
		text, err := ReadUntrusted(dir, name, most)
		if err == nil || !strings.Contains(err.Error(), want) || text != nil {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
		if errors.Is(err, fs.ErrNotExist) != (name == "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
