package esp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFaults records the results of accesses to the ESP. It checks which errors are faults, and
// which later access ends a fault.
func TestFaults(t *testing.T) {
	broken := &fs.PathError{Op: "read", Path: "/esp/EFI", Err: unix.EIO}
	rejected := fmt.Errorf("ESP: %w", mountError{errors.New("cannot mount /dev/vda1 (vfat): invalid argument")})
	f := &faults{}
	for i, c := range []struct {
		writes bool
		err    error
		want   string
	}{
		{false, nil, ""},
		{false, os.ErrNotExist, ""},
		{true, unix.ENOSPC, ""},
		{false, broken, "read /esp/EFI: input/output error"},
		{false, os.ErrNotExist, "read /esp/EFI: input/output error"},
		{false, nil, ""},
		{true, errors.Join(nil, errStopped), errStopped.Error()},
		{false, nil, errStopped.Error()}, // a successful read does not end a fault of writes
		{false, rejected, errStopped.Error()},
		{true, nil, ""},
		{false, rejected, "ESP: cannot mount /dev/vda1 (vfat): invalid argument"},
		{true, fmt.Errorf("ESP: cannot write: %w", unix.EROFS), "ESP: cannot write: read-only file system"},
		{true, nil, ""},
	} {
		if f.record(c.writes, c.err); f.get() != c.want {
			t.Errorf("step %d: %q, want %q", i, f.get(), c.want)
		}
	}
}

// TestCheckIsRecorded checks that an error before the mount is no fault, and that a failed mount is
// a fault. While another access runs, Check returns nil at once.
func TestCheckIsRecorded(t *testing.T) {
	e := &Partition{Device: func() (string, error) { return "", errors.New("no system disk") }, Target: t.TempDir(), Modules: func(...string) error { return nil }}
	if err := e.Check(); err == nil || e.Fault() != "" {
		t.Errorf("no device: %v, fault %q", err, e.Fault())
	}
	e.Device = func() (string, error) { return "/dev/null", nil }
	if err := e.Check(); err == nil || e.Fault() != err.Error() {
		t.Errorf("a device without a file system: %v, fault %q", err, e.Fault())
	}
	e.busy.Lock()
	if err := e.Check(); err != nil {
		t.Errorf("while another access runs: %v", err)
	}
}
