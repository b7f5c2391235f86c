// Package releasedtest compares stored formats with files that a released version has written.
// These files are in the directory testdata/released/VERSION of the package under test. They are
// contracts with the released versions (docs/decisions/0092-stored-formats.md), so no test rewrites
// them.
package releasedtest

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Dir is the directory with the files of version 0.1.0, relative to the package under test.
const Dir = "testdata/released/0.1.0"

// Read returns the content of the released file with this name.
func Read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Copy copies the released files of a subdirectory into a new directory, and returns the directory.
// The subdirectory "." means all files.
func Copy(t *testing.T, sub string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "released")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(Dir, sub))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Compare checks that the directory dir has the same files as the released subdirectory sub, with
// the same bytes.
func Compare(t *testing.T, sub, dir string) {
	t.Helper()
	want, got := list(t, filepath.Join(Dir, sub)), list(t, dir)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the present version wrote the files %q, the released version %q", got, want)
		return
	}
	for _, name := range want {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		CompareFile(t, filepath.Join(sub, name), text)
	}
}

// CompareFile checks that text has the bytes of the released file with this name.
func CompareFile(t *testing.T, name string, text []byte) {
	t.Helper()
	if want := Read(t, name); !bytes.Equal(text, want) {
		t.Errorf("%s: the present version wrote\n%s\nthe released version wrote\n%s", name, text, want)
	}
}

// Decode decodes a released JSON file. The present version must know every field of the file, and
// must encode the value to the same bytes. A newline at the end of the file is ignored.
func Decode[T any](t *testing.T, name string) (value T) {
	t.Helper()
	DecodeText(t, name, Read(t, name), &value)
	return value
}

// DecodeText does the same as Decode for a text that is a part of the released file.
func DecodeText[T any](t *testing.T, name string, text []byte, value *T) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	again, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if want := bytes.TrimSpace(text); !bytes.Equal(again, want) {
		t.Errorf("%s: the present version wrote\n%s\nthe released version wrote\n%s", name, again, want)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		names = append(names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
