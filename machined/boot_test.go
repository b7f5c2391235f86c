package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestChecking checks that only a check of a disk extends the boot deadline.
func TestChecking(t *testing.T) {
	proc := t.TempDir()
	run := func(pid, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("1", "machined")
	run("self", "e2fsck")
	if fsckRunning(proc) {
		t.Error("nothing is checked")
	}
	run("77", "e2fsck")
	if !fsckRunning(proc) {
		t.Error("a disk is being checked")
	}
}
