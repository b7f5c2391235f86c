package localvolumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// dig creates nested directories below dir, and a file in the deepest directory. It uses no paths,
// so depth can exceed the largest length of a path.
func dig(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range depth {
		if err != nil {
			break
		}
		below := -1
		if err = unix.Mkdirat(at, "d", 0o700); err == nil {
			below, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		at = below
	}
	if err == nil {
		err = unix.Mknodat(at, "file", unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
}

// TestRemoveTree checks that directories of any depth and name are removed with few open
// descriptors, and that the target of a symbolic link stays.
func TestRemoveTree(t *testing.T) {
	elsewhere := t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	dir := filepath.Join(t.TempDir(), "volume")
	err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(kept, nil, 0o600), os.Symlink(elsewhere, filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "second"), 0o700))
	for n := range 3 * readBatch {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "second", fmt.Sprint(n)), nil, 0o600))
	}
	for n := range 5 { // lift uses the same names
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, fmt.Sprint("deep-", n), "x"), 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	dig(t, dir, 3000)
	dig(t, filepath.Join(dir, "second"), 500)

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 4 * maxOpenDepth
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = removeTree(t.Context(), dir, func(string) error { return errors.New("nothing is of another project") })
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what a link led to: %v", err)
	}
	if err := removeTree(t.Context(), dir, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// TestClearing checks that a removal runs in the background. A removal that fails is reported and
// retried, and does not block other removals.
func TestClearing(t *testing.T) {
	n, _, root := copier(t)
	for _, name := range []string{named(2), named(3)} {
		if _, err := n.store.ensure(name, mib, ""); err != nil {
			t.Fatal(err)
		}
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("the machine stops"))
	r, err := n.perform(stopped, []string{named(2)}, nil)
	if err != nil || len(r.Removed) > 0 || r.Volumes[named(2)] != mib {
		t.Errorf("before it is removed: %+v, %v", r, err)
	}
	n.clearing.running.Wait()
	if _, err := os.Stat(filepath.Join(root, removing, named(2))); err != nil {
		t.Errorf("the machine stops, and removal does not: %v", err)
	}
	if _, err := n.store.retire(named(3)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.perform(t.Context(), []string{named(2), named(3)}, nil); err == nil {
		t.Error("that something is left was not told")
	}
	n.clearing.running.Wait()
	select {
	case <-n.changed:
	case <-time.After(10 * time.Second):
		t.Error("that it is gone was not told")
	}
	if r, err := n.perform(t.Context(), []string{named(2), named(3)}, nil); err != nil || len(r.Removed) != 2 || len(r.Volumes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
