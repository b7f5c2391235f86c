package debian

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestFillOnce checks that a directory is filled once, and that a failure leaves no directory.
func TestFillOnce(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	dir, file := filepath.Join(cache, "key"), filepath.Join(cache, "key", "file")
	if err := FillOnce(dir, func(string) error { return errors.New("no") }); err == nil || err.Error() != "no" {
		t.Errorf("a function that fails: got %v, want its error", err)
	}
	write := func(text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o600) }
	}
	// another build fills the directory first
	if err := FillOnce(dir, func(tmp string) error { return errors.Join(write("late")(tmp), FillOnce(dir, write("first"))) }); err != nil {
		t.Fatal(err)
	}
	if err := FillOnce(dir, write("again")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "first" {
		t.Errorf("the file has %q, %v; want the text of the first build", text, err)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
		t.Errorf("the cache has %v, %v; want one directory", left, err)
	}
}
