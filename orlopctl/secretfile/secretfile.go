// Package secretfile writes files that only their owner can read, atomically.
package secretfile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// File is a file that only its owner can read.
type File struct {
	Path    string
	Content []byte
}

// Write atomically writes a file that only its owner can read. Without replace, it returns an error
// if the file exists.
func Write(path string, content []byte, replace bool) error {
	return WriteAll([]File{{path, content}}, replace)
}

// WriteAll writes several files as Write does. No file gets its name before the contents of all
// files are on the disk.
func WriteAll(files []File, replace bool) error {
	for _, f := range files {
		if _, err := os.Lstat(f.Path); err == nil && !replace {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: cannot write: the file exists already", f.Path), Hint: "--force replaces it; certificates by the old keys then no longer work"}
		}
	}
	var staged []string
	defer func() {
		for _, temporary := range staged {
			_ = os.Remove(temporary) // fails after a success, because the file has its final name
		}
	}()
	for _, f := range files {
		temporary, err := stage(f.Path, func(w io.Writer) error {
			if _, err := w.Write(f.Content); err != nil {
				return fmt.Errorf("%s: cannot write: %w", f.Path, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		staged = append(staged, temporary)
	}
	for i, f := range files {
		if err := publish(staged[i], f.Path); err != nil {
			return err
		}
	}
	return nil
}

// WriteAtomic writes a file that only its owner can read. The file appears under its name only
// after its whole content is on the disk. An existing file is replaced. If the function write
// fails, nothing changes.
func WriteAtomic(path string, write func(io.Writer) error) error {
	temporary, err := stage(path, write)
	if err != nil {
		return err
	}
	if err := publish(temporary, path); err != nil {
		_ = os.Remove(temporary) // the temporary file is useless now
		return err
	}
	return nil
}

// publish gives a staged file its final name. It then flushes the directory, because the new file
// must survive a power cut: the file may hold the only copy of a key that a machine gets next.
func publish(temporary, path string) error {
	place := linked(path)
	if err := os.Rename(temporary, place); err != nil {
		return fmt.Errorf("%s: cannot write: %w", path, err)
	}
	// An error is ignored, because some network file systems cannot flush a directory. The content
	// of the file is on the disk already.
	_ = safefile.SyncDir(filepath.Dir(place))
	return nil
}

// linked returns the path of the file to replace. For a symbolic link, this is the target of the
// link; the link itself remains.
func linked(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

// stage writes a file to the disk under a temporary name in the same directory, and returns the
// temporary name. If the function write fails, no file remains.
func stage(path string, write func(io.Writer) error) (temporary string, err error) {
	place := linked(path)
	file, err := os.CreateTemp(filepath.Dir(place), "."+filepath.Base(place)+"-*") // mode 0600
	if err != nil {
		return "", fmt.Errorf("%s: cannot write: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // the temporary file is useless now
		}
	}()
	if err := write(file); err != nil {
		_ = file.Close() // the error of write is the relevant error
		return "", err
	}
	err = file.Sync()
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return "", fmt.Errorf("%s: cannot write: %w", path, err)
	}
	return file.Name(), nil
}
