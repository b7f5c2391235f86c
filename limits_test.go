package orlop

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLibseccompRow checks the limit "runc contains the libseccomp of the building computer".
// docs/limits.md must have it if the building computer installs libseccomp-dev and the lock file
// has no libseccomp. Otherwise, docs/limits.md must not have it.
func TestLibseccompRow(t *testing.T) {
	read := func(path ...string) string {
		text, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	row := strings.Contains(read("docs", "limits.md"), "runc contains the libseccomp of the building computer")
	building := strings.Contains(read("imager", "host-packages.txt"), "libseccomp-dev ")
	locked := strings.Contains(read("imager", "packages.lock"), "libseccomp")
	if row != (building && !locked) {
		t.Errorf("docs/limits.md says that runc contains the building computer's libseccomp: %t; imager/host-packages.txt names libseccomp-dev: %t; imager/packages.lock names libseccomp: %t",
			row, building, locked)
	}
}
