package projectquota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/mkfs"
	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

const mib = 1 << 20

// disk creates a file system on the disk of the test machine and mounts it. The end of the test
// unmounts it.
func disk(t *testing.T, quotas mkfs.Quotas) mount.Mount {
	t.Helper()
	mkfstest.Overwrites(t)
	m := mount.Mount{Source: mkfstest.Disk, Target: filepath.Join(t.TempDir(), "data"), Type: "ext4", Flags: mount.NoSuid | mount.NoDev}
	if err := mkfs.Ext4(t.Context(), mkfstest.Run, m.Source, mkfs.Ext4Options{Label: "DATA", ReservedPercent: 1, Quotas: quotas}); err != nil {
		t.Fatal(err)
	}
	if err := m.Do(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.Unmount(m.Target); err != nil {
			t.Error(err)
		}
	})
	return m
}

// write appends at least the given number of bytes to a file, in steps of 256 KiB, and returns how
// many bytes it has written. It runs without CAP_SYS_RESOURCE, like a pod.
func write(t *testing.T, path string, bytes int) (int, error) {
	t.Helper()
	var written int
	err := Limited(func() error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		defer f.Close()
		for written < bytes {
			n, err := f.Write(make([]byte, mib/4))
			written += n
			if err != nil {
				return err
			}
		}
		return f.Sync()
	})
	return written, err
}

// TestLimit checks that a project cannot exceed its limits of bytes and inodes, and that other
// projects are not affected. The limit can be raised while the project is in use. It is still
// effective after an unmount and a new mount.
func TestLimit(t *testing.T) {
	m := disk(t, mkfs.ProjectQuotas)
	for range 2 {
		if err := Enforce(m.Target); err != nil {
			t.Fatal(err)
		}
	}
	first, second := filepath.Join(m.Target, "first"), filepath.Join(m.Target, "second")
	for id, dir := range map[uint32]string{7: first, 8: second} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(Assign(dir, id), SetLimit(m.Target, id, Limit{Bytes: 4 * mib, Inodes: 10})); err != nil {
			t.Fatal(err)
		}
		if got, err := Of(dir); err != nil || got != id {
			t.Fatalf("%s: project %d, %v, want %d", dir, got, err, id)
		}
	}
	below := filepath.Join(first, "below")
	if err := os.Mkdir(below, 0o777); err != nil {
		t.Fatal(err)
	}
	if id, err := Of(below); err != nil || id != 7 {
		t.Errorf("a new directory in project 7 belongs to project %d, %v", id, err)
	}
	n, err := write(t, filepath.Join(below, "file"), 16*mib)
	if !errors.Is(err, unix.EDQUOT) || n < 3*mib || n > 4*mib {
		t.Errorf("%d of 4 MiB written, then %v, want EDQUOT", n, err)
	}
	if n, err := write(t, filepath.Join(second, "file"), 2*mib); err != nil || n != 2*mib {
		t.Errorf("another project: %d written, %v", n, err)
	}
	var shown unix.Statfs_t
	if err := unix.Statfs(below, &shown); err != nil || shown.Blocks*uint64(shown.Bsize) != 4*mib {
		t.Errorf("the project is shown as %d bytes large, %v", shown.Blocks*uint64(shown.Bsize), err)
	}
	if err := SetLimit(m.Target, 7, Limit{Bytes: 8 * mib, Inodes: 10}); err != nil {
		t.Fatal(err)
	}
	if n, err := write(t, filepath.Join(below, "file"), 2*mib); err != nil || n != 2*mib {
		t.Errorf("with a higher limit: %d written, %v", n, err)
	}
	var made []string
	err = Limited(func() error {
		for i := range 20 {
			name := filepath.Join(second, fmt.Sprint(i))
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
			made = append(made, name)
		}
		return nil
	})
	if !errors.Is(err, unix.EDQUOT) || len(made) != 8 {
		t.Errorf("%d more files, then %v, want 8 and EDQUOT", len(made), err)
	}
	if err := os.Rename(filepath.Join(second, "file"), filepath.Join(first, "file")); err == nil {
		info, err := Of(filepath.Join(first, "file"))
		t.Errorf("a file was moved into another project, and now belongs to project %d, %v", info, err)
	}

	limit, usage, err := Get(m.Target, 7)
	if err != nil || limit != (Limit{Bytes: 8 * mib, Inodes: 10}) || usage.Bytes < 5*mib || usage.Inodes != 3 {
		t.Errorf("%+v, %+v, %v", limit, usage, err)
	}
	if err := mount.Unmount(m.Target); err != nil {
		t.Fatal(err)
	}
	if _, err := mkfstest.Run(t.Context(), "/usr/sbin/e2fsck", "-f", "-n", m.Source); err != nil {
		t.Errorf("the file system has errors: %v", err)
	}
	if err := errors.Join(m.Do(), Enforce(m.Target)); err != nil {
		t.Fatal(err)
	}
	if n, err := write(t, filepath.Join(below, "file"), 16*mib); !errors.Is(err, unix.EDQUOT) || n > 3*mib {
		t.Errorf("after a mount: %d written, then %v, want EDQUOT", n, err)
	}
	if err := errors.Join(os.RemoveAll(first), SetLimit(m.Target, 7, Limit{})); err != nil {
		t.Fatal(err)
	}
	if limit, usage, err := Get(m.Target, 7); err != nil && !errors.Is(err, unix.ESRCH) || limit != (Limit{}) || usage != (Usage{}) {
		t.Errorf("the removed project still has %+v, %+v, %v", limit, usage, err)
	}
}

// TestUnsupported checks that Enforce and Assign fail with ErrUnsupported on a file system without
// project quotas, and that files can still be written.
func TestUnsupported(t *testing.T) {
	m := disk(t, mkfs.NoQuotas)
	if err := Enforce(m.Target); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want %v", err, ErrUnsupported)
	}
	if err := Assign(m.Target, 7); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want %v", err, ErrUnsupported)
	}
	if err := os.WriteFile(filepath.Join(m.Target, "file"), []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
}
