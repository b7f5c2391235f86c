package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestAll checks that the stamp of several files changes if any of these files changes. A missing
// file is an error of StampAll and of ReadAll.
func TestAll(t *testing.T) {
	dir, names := t.TempDir(), []string{"a", "b"}
	write := func(name, text string) {
		if err := WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stamp := func() string {
		stamp, err := StampAll(dir, names)
		if err != nil {
			t.Fatal(err)
		}
		return stamp
	}
	write("a", "1")
	if _, err := StampAll(dir, names); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("StampAll with a missing file: %v", err)
	}
	if _, err := ReadAll(dir, names); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadAll with a missing file: %v", err)
	}
	write("b", "2")
	write("other", "3")
	first := stamp()
	write("other", "4")
	if again := stamp(); again != first {
		t.Errorf("the stamp has changed without a change of a and b: %q, then %q", first, again)
	}
	for _, name := range names {
		before := stamp()
		write(name, "5") // the size of the file does not change
		if after := stamp(); after == before {
			t.Errorf("%s has changed, but the stamp is still %q", name, after)
		}
	}
	if err := os.Remove(filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	texts, err := ReadAll(dir, names)
	if err != nil || len(texts) != 2 || string(texts["a"]) != "5" || string(texts["b"]) != "5" {
		t.Errorf("%q, %v", texts, err)
	}
}
