package extensions

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/extension"
)

// TestOwnFiles checks for which paths Has returns true, so an extension must not have them: the
// files of the system, all paths outside its directory, and all paths if the directory cannot be
// read. NewOwnFiles opens the directory, so the result stays the same if the directory is replaced
// later.
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
		t.Error("the directory cannot be read, but a path in it does not belong to the system")
	}
}

// TestMakeState checks that only the user of a service can read the state directory of the service,
// and that makeState succeeds if the directory exists.
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
