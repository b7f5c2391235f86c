// Package releasedtest compares stored formats with the files that a released version has written,
// which are in testdata/released/VERSION of the package under test. The files are contracts
// (docs/decisions/0092-stored-formats.md): no test rewrites them.
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

// Read returns the content of a released file.
func Read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Copy returns a new directory with copies of the released files of a subdirectory ("." for all).
func Copy(t *testing.T, sub string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "released")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(Dir, sub))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Compare checks that a directory has exactly the files of a released subdirectory, with the same
// bytes.
func Compare(t *testing.T, sub, dir string) {
	t.Helper()
	want, got := list(t, filepath.Join(Dir, sub)), list(t, dir)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the present version wrote %q, the released one %q", got, want)
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

// CompareFile checks that a text is the content of a released file.
func CompareFile(t *testing.T, name string, text []byte) {
	t.Helper()
	if want := Read(t, name); !bytes.Equal(text, want) {
		t.Errorf("%s: the present version wrote\n%s\nthe released one\n%s", name, text, want)
	}
}

// Decode decodes a released file of JSON, in which the present version must know every field. It
// checks that the present version encodes the value to the same bytes, without regard to a last
// newline.
func Decode[T any](t *testing.T, name string) (value T) {
	t.Helper()
	DecodeText(t, name, Read(t, name), &value)
	return value
}

// DecodeText is Decode for a part of a released file.
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
		t.Errorf("%s: the present version wrote\n%s\nthe released one\n%s", name, again, want)
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
