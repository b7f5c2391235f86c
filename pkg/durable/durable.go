// Package durable replaces files so that a power cut leaves the old content or the new one, and
// what was reported as written stays written. It does not care for owners, and makes no folders.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteFile replaces a file as a whole. When it returns nil, the new content survives a power cut.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	if err := renameio.WriteFile(name, content, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(name))
}

// SyncDir makes what was made, renamed or removed in a folder last: flushing a file alone does
// not (fsync(2)).
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
