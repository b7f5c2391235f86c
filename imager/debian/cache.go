package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FillOnce creates a directory of a cache, unless it exists. It calls fill with a temporary
// directory, and renames this directory to dir. An existing dir is therefore always complete, even
// after an interruption or a power cut, and two builds can fill it at the same time.
func FillOnce(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cache := filepath.Dir(dir)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	// An interrupted run leaves the temporary directory behind. No later run uses it.
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
	// Without persist, files in dir could be empty after a power cut.
	if err := persist(tmp); err != nil {
		return fmt.Errorf("%s: cannot store: %w", tmp, err)
	}
	// fs.ErrExist means that another build has created dir in the meantime.
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// persist writes all data of the directory's file system to the disk. A single call for the file
// system is faster than a call for each of thousands of files.
func persist(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
