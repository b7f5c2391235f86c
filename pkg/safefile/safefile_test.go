package safefile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	for _, content := range []string{"old and long", "new"} {
		if err := WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil || string(got) != content {
			t.Errorf("%q, %v; want %q", got, err, content)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the directory contains %v (%v), want only the file", left, err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "file"), nil, 0o600); err == nil {
		t.Error("WriteFile succeeds although the directory does not exist")
	}
}
