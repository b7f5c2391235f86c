package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// sumsFile is the name of the file that lists the digests of all other files of a directory, in the
// format of sha256sum(1).
const sumsFile = "SHA256SUMS"

// sums returns the content that sumsFile should have for a directory.
func sums(dir string) (string, error) {
	var text strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == sumsFile {
			return err
		}
		sum, _, err := safefile.SHA256(path)
		fmt.Fprintf(&text, "%s  %s\n", sum, filepath.ToSlash(name))
		return err
	})
	return text.String(), err
}

// writeSums writes sumsFile into a directory.
func writeSums(dir string) error {
	text, err := sums(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(text), 0o644)
}

// verifySums checks that a directory has exactly the files that sumsFile lists, with the same
// digests. The error wraps fs.ErrNotExist if the directory does not exist.
func verifySums(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		// this error must not wrap fs.ErrNotExist, because the directory exists
		return fmt.Errorf("cannot verify: %v", err)
	}
	got, err := sums(dir)
	if err != nil {
		return fmt.Errorf("cannot verify: %w", err)
	}
	if got != string(want) {
		return fmt.Errorf("the files do not have the digests of %s", sumsFile)
	}
	return nil
}
