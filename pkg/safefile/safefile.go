// Package safefile reads and writes files safely.
//   - WriteFile and SyncDir replace a file. After a power cut, the file has the old or the new
//     content. It has the new content if WriteFile has returned nil. They set no owner and create
//     no directory.
//   - Publish replaces a file on a tmpfs for processes with fewer privileges.
//   - ReadUntrusted reads a file that a less trusted process can replace.
//   - AllowList opens only files that a client may read.
//   - InMemory creates an anonymous file for another process.
//   - Listen and Inherited pass a socket or another open file from a process to its child.
//   - SHA256 computes the digest of a file.
//   - StampAll detects changes of several files, and ReadAll reads them.
package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteFile replaces a file atomically. After it has returned nil, the new content survives a power
// cut.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	if err := renameio.WriteFile(name, content, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(name))
}

// SyncDir flushes a directory. After the flush, creations, renames and removals in the directory
// survive a power cut. A flush of the files alone is not sufficient for this (fsync(2)).
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
