package disk

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLink checks that the function link replaces any existing file by a link and retains the file
// under another name, and that a correct link stays unchanged.
func TestLink(t *testing.T) {
	for what, c := range map[string]struct {
		before func(name string) error
		kept   string // a file in the retained directory; empty: no file is retained
	}{
		"no file":          {func(string) error { return nil }, ""},
		"the correct link": {func(name string) error { return os.Symlink("/run", name) }, ""},
		"another link":     {func(name string) error { return os.Symlink("/elsewhere", name) }, "."},
		"a directory": {func(name string) error {
			if err := os.MkdirAll(name, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(name, "file"), nil, 0o600)
		}, "file"},
		"a directory, and a retained one": {func(name string) error {
			if err := os.MkdirAll(filepath.Join(name+".old", "older"), 0o700); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(name, "newer"), 0o700)
		}, "newer"},
	} {
		name := filepath.Join(t.TempDir(), "run")
		if err := c.before(name); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second run changes nothing
			if err := link(name, "/run"); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if target, err := os.Readlink(name); err != nil || target != "/run" {
				t.Errorf("%s: the link leads to %q, %v", what, target, err)
			}
			_, err := os.Lstat(filepath.Join(name+".old", c.kept))
			if c.kept == "." {
				_, err = os.Lstat(name + ".old")
			}
			if there := err == nil; there != (c.kept != "") {
				t.Errorf("%s: the earlier file is retained: %t", what, there)
			}
		}
	}
}

// TestDataDirs checks that dataDirs lists each directory once and after its parent, and contains
// the directory of each link.
func TestDataDirs(t *testing.T) {
	have := map[string]bool{".": true}
	for _, f := range dataDirs() {
		if filepath.IsAbs(f) || have[f] || !have[filepath.Dir(f)] {
			t.Errorf("%s: is absolute, named twice, or before its parent", f)
		}
		have[f] = true
	}
	for _, v := range systemVolumes() {
		for name := range v.Links {
			if !have[filepath.Dir(name)] {
				t.Errorf("%s: the parent directory of the link is not created", name)
			}
		}
	}
}
