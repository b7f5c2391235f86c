package identity

import (
	"os"
	"path/filepath"
	"testing"
)

// TestIdentity checks that a key is created once, and that a stored key is read at the next boot.
// If the stored key is damaged, the machine uses a new key in memory, and does not overwrite the
// file.
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	files := func(name string) Files {
		return Files{Key: filepath.Join(dir, name, "key"), Cert: filepath.Join(dir, name, "crt"), DirMode: 0o700}
	}
	var lines []string
	boot := func(hasStorage bool) *Identity {
		t.Helper()
		i := New(Deps{Name: "orlop", Stored: files("state"), Memory: files("memory"), Console: func(l string) { lines = append(lines, l) }})
		if i.Load() != nil {
			t.Error("Load returns a key before Read")
		}
		if err := i.Read(hasStorage); err != nil {
			t.Fatal(err)
		}
		return i
	}
	memory := boot(false)
	if err := memory.Persist(); err != nil {
		t.Fatal(err)
	}
	stored := boot(true)
	if !stored.Load().Key.Equal(memory.Load().Key) {
		t.Error("the stored key differs from the key in memory")
	}
	if err := os.RemoveAll(filepath.Join(dir, "memory")); err != nil {
		t.Fatal(err)
	}
	other := boot(false)
	if err := other.Persist(); err != nil {
		t.Fatal(err)
	}
	if !boot(true).Load().Key.Equal(stored.Load().Key) {
		t.Error("the key on the disk was replaced")
	}
	if len(lines) > 0 {
		t.Errorf("unexpected lines on the console: %q", lines)
	}
	if err := os.WriteFile(files("state").Key, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if temporary := boot(true); temporary.Load().Key.Equal(stored.Load().Key) || len(lines) != 1 {
		t.Errorf("the key of the damaged file is used, or the number of lines on the console is not 1: %q", lines)
	}
	if text, err := os.ReadFile(files("state").Key); err != nil || string(text) != "damaged" {
		t.Errorf("a damaged key was replaced on the disk: %v", err)
	}
}
