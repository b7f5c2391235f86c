package safefile

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Publish replaces a file on a tmpfs atomically. All users can read the file, independent of the
// umask of the process. If the directory does not exist, the error is fs.ErrNotExist. Publish does
// not flush the file to disk.
func Publish(dir, name string, content []byte) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, name), content, 0o444, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
