package orlop

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLibseccompRow checks the premise of a row of docs/limits.md: runc contains the libseccomp of
// the building computer. With a libseccomp in the lock file, the row must name that version.
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
