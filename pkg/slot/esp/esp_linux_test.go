package esp

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/slot"
)

// TestEntries checks which files of a directory the function entries lists, and which files the
// function others removes. Both functions also run on the mounted ESP.
func TestEntries(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"orlop-1.0.0.efi", "orlop-1.1.0+0-3.efi", "1.2.0.new", "other.efi"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := entries(dir)
	if want := []slot.Entry{{Version: "1.0.0"}, {Version: "1.1.0", Trial: true, Tries: 3}}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, %v", all, err)
	}
	if err := others(dir, "1.0.0", remove); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(dir + "/*")
	if want := []string{filepath.Join(dir, "orlop-1.0.0.efi"), filepath.Join(dir, "other.efi")}; err != nil || !reflect.DeepEqual(left, want) {
		t.Errorf("%q, %v", left, err)
	}
}

// TestRemoveStatements checks that only the statement of the retained version stays. Files of
// interrupted writes are removed.
func TestRemoveStatements(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, statements)
	keep := filepath.Base(Statement("1.0.0"))
	if err := removeStatements(dir, keep); err != nil {
		t.Errorf("removeStatements without a directory: %v", err)
	}
	for _, name := range []string{Statement("1.0.0"), Statement("1.1.0"), Statement("1.2.0") + unfinished} {
		full := filepath.Join(root, name)
		if err := write(full, full+".tmp", strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeStatements(dir, keep); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(dir + "/*")
	if want := []string{filepath.Join(root, Statement("1.0.0"))}; err != nil || !reflect.DeepEqual(left, want) {
		t.Errorf("%q, %v", left, err)
	}
}
