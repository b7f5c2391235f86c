package esp

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/slot"
)

// errStopped is the error of a write after which the kernel accepts no more writes: vfat makes
// itself read-only after an inconsistency (vfat, errors=remount-ro). The next mount is writable.
var errStopped = errors.New("ESP: the kernel found an error in the file system and made it read-only")

// faults are the errors of the disk or the file system in the last accesses.
type faults struct {
	mu          sync.Mutex
	read, write string
}

// record records the result of an access. Errors of the caller, such as a missing file, change
// nothing. A read that succeeds says nothing about writes.
func (f *faults) record(writes bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && writes:
		f.read, f.write = "", ""
	case err == nil:
		f.read = ""
	case !isFault(err):
	case writes:
		f.write = err.Error()
	default:
		f.read = err.Error()
	}
}

func (f *faults) get() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.write, f.read)
}

// mountError is the error of a mount, which is always a fault: the partition is known to be an ESP.
type mountError struct{ error }

func (e mountError) Unwrap() error { return e.error }

// isFault reports whether the disk or the file system caused an error.
func isFault(err error) bool {
	if errors.As(err, new(mountError)) {
		return true
	}
	return slices.ContainsFunc([]error{errStopped, unix.EIO, unix.EROFS, unix.EUCLEAN, unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM}, func(cause error) bool { return errors.Is(err, cause) })
}

// stopped returns errStopped if a file system that was mounted for writes is read-only.
func stopped(target string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return errStopped
	}
	return nil
}

// Fault returns the error of the disk or the file system in the last access, or why the kernel has
// stopped the last write; it is empty if there was no error. It reads no disk.
func (e *Partition) Fault() string { return e.faults.get() }

// Check reads the file allocation table and the directory of entries, and records the result for
// Fault. It does nothing while the ESP is in use.
func (e *Partition) Check() error {
	if !e.busy.TryLock() {
		return nil
	}
	defer e.busy.Unlock()
	return e.mount(mount.ReadOnly, func(root string) error {
		var s unix.Statfs_t
		if err := unix.Statfs(root, &s); err != nil { // counts the free clusters
			return fmt.Errorf("ESP: cannot read its free space: %w", err)
		}
		_, err := entries(filepath.Join(root, slot.EntriesDir))
		return err
	})
}
