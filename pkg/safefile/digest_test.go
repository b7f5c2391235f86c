package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSHA256(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "abc")
	if err := os.WriteFile(file, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	// FIPS 180-2, appendix B.1
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if digest, size, err := SHA256(file); err != nil || digest != want || size != 3 {
		t.Errorf("%s, %d bytes, %v; want %s, 3 bytes", digest, size, err, want)
	}
	if _, _, err := SHA256(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, _, err := SHA256(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("SHA256 of a directory: %v, want an error with its path", err)
	}
}
