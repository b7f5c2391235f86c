package verity

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// Write writes a sealed image to a partition from its beginning, flushes it, and drops its pages
// from the kernel's cache, so that the next reader, Verify, reads the disk. content writes the
// image.
func Write(device string, content func(io.Writer) error) (err error) {
	f, err := mount.OpenExclusive(device, os.O_WRONLY)
	if err != nil {
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
