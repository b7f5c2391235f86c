package safefile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Stamp returns a text that changes when a rename replaces the file, as WriteFile does. The text
// contains the inode number, so the text changes even if the time and the size of the file stay the
// same.
func Stamp(info fs.FileInfo) string {
	stamp := fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp += fmt.Sprint(" ", s.Ino)
	}
	return stamp
}

// StampAll returns a text that changes when any of the named files in a directory changes. It fails
// if a file is missing.
func StampAll(dir string, names []string) (string, error) {
	stamp := ""
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		stamp += Stamp(info) + "/"
	}
	return stamp, nil
}

// ReadAll returns the content of the named files in a directory, by name. It fails if a file is
// missing.
func ReadAll(dir string, names []string) (map[string][]byte, error) {
	texts := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		texts[name] = text
	}
	return texts, nil
}
