package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// sumsFile lists the digests of all other files of a directory, in the format of sha256sum(1).
const sumsFile = "SHA256SUMS"

// sums returns the content of sumsFile for a directory.
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

// writeSums writes sumsFile.
func writeSums(dir string) error {
	text, err := sums(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(text), 0o644)
}

// verifySums checks that a directory holds exactly the files in sumsFile. The error is
// fs.ErrNotExist if the directory does not exist.
func verifySums(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		return fmt.Errorf("cannot verify: %v", err) // not fs.ErrNotExist: the directory is there
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
