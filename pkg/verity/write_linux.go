package verity

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// Write writes a sealed image to a partition, from the beginning of the partition, and flushes it
// to the disk. The function content writes the bytes of the image. Write then drops the pages of
// the partition from the page cache. So the next reader, usually Verify, reads the disk and not the
// cache.
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
