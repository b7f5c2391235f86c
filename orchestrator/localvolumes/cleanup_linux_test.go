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
// so depth can be larger than the limit for the length of a path.
func dig(t *testing.T, dir string, depth int) {
	t.Helper()
	parent, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range depth {
		if err != nil {
			break
		}
		child := -1
		if err = unix.Mkdirat(parent, "d", 0o700); err == nil {
			child, err = unix.Openat(parent, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(parent)
		parent = child
	}
	if err == nil {
		err = unix.Mknodat(parent, "file", unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(parent)
}

// TestRemoveTree checks that removeTree removes directories of any depth and name with few open
// descriptors. It does not follow a symbolic link.
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
	err = removeTree(t.Context(), dir, func(string) error { return errors.New("no entry should have another project") })
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory still exists: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the target of a symbolic link was removed: %v", err)
	}
	if err := removeTree(t.Context(), dir, nil); err != nil {
		t.Errorf("second removal: %v", err)
	}
}

// TestClearing checks that the node removes volumes in the background. A removal that fails is
// reported and retried, and does not block other removals.
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
		t.Errorf("before the removal: %+v, %v", r, err)
	}
	n.clearing.running.Wait()
	if _, err := os.Stat(filepath.Join(root, removing, named(2))); err != nil {
		t.Errorf("the removal continues although the machine stops: %v", err)
	}
	if _, err := n.store.retire(named(3)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.perform(t.Context(), []string{named(2), named(3)}, nil); err == nil {
		t.Error("a failed removal is not reported")
	}
	n.clearing.running.Wait()
	select {
	case <-n.changed:
	case <-time.After(10 * time.Second):
		t.Error("a removal triggers no pass")
	}
	if r, err := n.perform(t.Context(), []string{named(2), named(3)}, nil); err != nil || len(r.Removed) != 2 || len(r.Volumes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
