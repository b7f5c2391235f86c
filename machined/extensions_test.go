package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOwnFiles checks which paths belong to the system, also if a directory is replaced later.
func TestOwnFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "usr")
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/machined"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own := newOwnFiles(dir)
	if err := os.Rename(dir, dir+".former"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		dir + "/bin/machined": true, dir + "/bin/runsc": false, dir + "/sbin/mount.nfs": false, "/etc/passwd": true, dir + "/../etc": true,
		dir + "/bin/machined/x": true, // the system has a file where a directory would be
	} {
		if own.has(name) != want {
			t.Errorf("%s: %v, expected %v", name, !want, want)
		}
	}
	if missing := newOwnFiles(dir); !missing.has(dir + "/bin/runsc") {
		t.Error("the files of an unreadable directory are unknown, and a path counts as free")
	}
}
