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

// errStopped is the error of a write after which the file system is read-only. vfat makes itself
// read-only if it finds an inconsistency (errors=remount-ro). The next mount is writable again.
var errStopped = errors.New("ESP: the kernel found an error in the file system and made it read-only")

// faults are the last faults of the disk or the file system: for reads, and for writes.
type faults struct {
	mu          sync.Mutex
	read, write string
}

// record records the result of an access. A successful write ends both faults. A successful read
// ends only the fault of reads. An error that is no fault, for example a missing file, changes
// nothing.
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

// get returns the fault of writes, or the fault of reads if there is no fault of writes. It returns
// "" if there is no fault.
func (f *faults) get() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.write, f.read)
}

// mountError is the error of a mount. It is always a fault of the disk or the file system, because
// the device is known to be the ESP.
type mountError struct{ error }

func (e mountError) Unwrap() error { return e.error }

// isFault reports whether an error is a fault of the disk or of the file system.
func isFault(err error) bool {
	if errors.As(err, new(mountError)) {
		return true
	}
	return slices.ContainsFunc([]error{errStopped, unix.EIO, unix.EROFS, unix.EUCLEAN, unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM}, func(cause error) bool { return errors.Is(err, cause) })
}

// stopped returns errStopped if the file system, mounted for writes, has become read-only.
func stopped(target string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return errStopped
	}
	return nil
}

// Fault returns the last fault of the disk or the file system that no later access has ended; empty
// if there is none. It reads no disk.
func (e *Partition) Fault() string { return e.faults.get() }

// Check reads the file allocation table and the directory of entries, and records the result for
// Fault. If the ESP is in use, it returns nil at once.
func (e *Partition) Check() error {
	if !e.busy.TryLock() {
		return nil
	}
	defer e.busy.Unlock()
	return e.mount(mount.ReadOnly, func(root string) error {
		var s unix.Statfs_t
		if err := unix.Statfs(root, &s); err != nil { // reads the file allocation table
			return fmt.Errorf("ESP: cannot read its free space: %w", err)
		}
		_, err := entries(filepath.Join(root, slot.EntriesDir))
		return err
	})
}
