package extensions

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/extension"
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
	own := NewOwnFiles(dir)
	if err := os.Rename(dir, dir+".former"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		dir + "/bin/machined": true, dir + "/bin/runsc": false, dir + "/sbin/mount.nfs": false, "/etc/passwd": true, dir + "/../etc": true,
		dir + "/bin/machined/x": true, // the system has a file where a directory would be
	} {
		if own.Has(name) != want {
			t.Errorf("%s: %v, expected %v", name, !want, want)
		}
	}
	if missing := NewOwnFiles(dir); !missing.Has(dir + "/bin/runsc") {
		t.Error("the files of an unreadable directory are unknown, and a path counts as free")
	}
}

// TestMakeState checks that the directory of a service is its own, and that it can be made again.
func TestMakeState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state/agent")
	for range 2 {
		if err := makeState(dir, os.Getuid()); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if got := (extension.Service{Name: "agent"}).StateDir(); got != "/var/lib/extension-state/agent" {
		t.Error(got)
	}
}
