// Package safefile reads and writes files safely. WriteFile and SyncDir replace files atomically
// and durably: after a power cut a file has the old content or the new content, and it has the new
// content if the write was reported as successful. They neither set owners nor create directories.
// Publish replaces a file in memory for less privileged readers. ReadUntrusted reads a file that a
// less trusted party can replace, AllowList opens only files that a client may read, InMemory makes
// an anonymous file for another process, Inherited takes over an open file of the parent process,
// and SHA256 computes the digest of a file. StampAll and ReadAll keep a process in sync with
// several files.
package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteFile replaces a file atomically. When it returns nil, the new content survives a power cut.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	if err := renameio.WriteFile(name, content, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(name))
}

// SyncDir makes creations, renames and removals in a directory durable. Flushing a file alone does
// not (fsync(2)).
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
