package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FillOnce makes a directory of a cache with the content that fill writes, unless the directory
// exists. The directory is complete after an interruption and after a power cut, and two builds can
// fill it at the same time. Fill gets a temporary directory beside it.
func FillOnce(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cache := filepath.Dir(dir)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	// An interrupted run leaves a directory with another name, which is never used.
	tmp, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	// After a power cut, files could be empty in a directory that counts as complete.
	if err := persist(tmp); err != nil {
		return fmt.Errorf("%s: cannot store: %w", tmp, err)
	}
	// ErrExist: another build has finished first.
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// persist waits until the file system of a directory is on the disk. A single call is faster than
// one for each of thousands of files.
func persist(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
