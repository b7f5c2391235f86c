package verity

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/mount"
)

// Write writes a sealed image to a partition from its beginning, flushes it, and drops its pages
// from the kernel's cache, so that the next reader, Verify, reads the disk. content writes the
// image.
func Write(device string, content func(io.Writer) error) (err error) {
	// with O_EXCL the kernel rejects a device in use (open(2))
	var f *os.File
	if err := mount.WhileBusy(func() (err error) {
		f, err = os.OpenFile(device, os.O_WRONLY|unix.O_EXCL, 0)
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := content(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return fmt.Errorf("cannot drop buffers: %w", err)
	}
	return nil
}
