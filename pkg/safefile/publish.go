package safefile

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Publish replaces a file in a directory in memory atomically, for all users to read, whatever the
// mask of the process. fs.ErrNotExist: the directory does not exist. The content does not survive a
// power cut.
func Publish(dir, name string, content []byte) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, name), content, 0o444, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
