package copytree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree makes a directory with each type of file that a user can create.
func tree(t *testing.T, root string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		os.MkdirAll(at("d/e"), 0o755),
		os.WriteFile(at("d/file"), make([]byte, piece+5), 0o640),
		os.WriteFile(at("empty"), nil, 0o600),
		os.Symlink("d/file", at("link")),
		os.Link(at("d/file"), at("d/e/hard")),
		unix.Mkfifo(at("pipe"), 0o600),
		os.Chtimes(at("d/file"), time.Unix(5, 6), time.Unix(7, 8)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEqual checks that a copy equals its original, also on another file system, and that each
// difference is found.
func TestEqual(t *testing.T) {
	from := t.TempDir()
	tree(t, from)
	elsewhere, err := os.MkdirTemp("/dev/shm", "copytree") // usually a tmpfs
	if err != nil {
		elsewhere = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(elsewhere) })
	if err := Copy(t.Context(), from, elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := Equal(t.Context(), from, elsewhere); err != nil {
		t.Fatalf("a directory and its copy: %v", err)
	}
	for name, c := range map[string]struct {
		change func(at func(string) string) error
		want   string
	}{
		"one byte":       {func(at func(string) string) error { return flip(at("d/file")) }, "d/e/hard"},
		"a mode":         {func(at func(string) string) error { return os.Chmod(at("empty"), 0o644) }, "empty"},
		"a size":         {func(at func(string) string) error { return os.WriteFile(at("empty"), []byte("x"), 0o600) }, "empty"},
		"a time":         {func(at func(string) string) error { return os.Chtimes(at("empty"), time.Unix(1, 0), time.Unix(1, 0)) }, "empty"},
		"a name":         {func(at func(string) string) error { return os.Rename(at("pipe"), at("pope")) }, "differs"},
		"a missing file": {func(at func(string) string) error { return os.Remove(at("d/e/hard")) }, "d/e"},
		"a link": {func(at func(string) string) error {
			return errors.Join(os.Remove(at("link")), os.Symlink("d", at("link")), os.Chtimes(at("d"), time.Unix(1, 0), time.Unix(1, 0)))
		}, "d"},
		"another type": {func(at func(string) string) error {
			return errors.Join(os.Remove(at("pipe")), os.Mkdir(at("pipe"), 0o600))
		}, "differs"},
	} {
		to := t.TempDir()
		if err := Copy(t.Context(), from, to); err != nil {
			t.Fatal(err)
		}
		if err := c.change(func(name string) string { return filepath.Join(to, name) }); err != nil {
			t.Fatal(err)
		}
		if err := Equal(t.Context(), from, to); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := Equal(stopped, from, elsewhere); !errors.Is(err, context.Canceled) {
		t.Errorf("Equal with a canceled context: %v", err)
	}
}

// flip changes a byte of a file and preserves its modification time.
func flip(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{1}, info.Size()-1)
	return errors.Join(err, f.Close(), os.Chtimes(name, info.ModTime(), info.ModTime()))
}
