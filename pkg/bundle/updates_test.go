package bundle

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// The tests of this file check that attacks on updates are rejected. docs/updates.md has a table of
// the attacks.

// member is a file of an archive.
type member struct {
	name    string
	content []byte
}

// members reads an archive.
func members(t *testing.T, file []byte) (all []member) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(file)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, member{h.Name, content})
	}
}

// archiveOf writes an archive.
func archiveOf(t *testing.T, all ...member) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range all {
		if err := w.WriteHeader(&tar.Header{Name: m.name, Mode: 0o644, Size: int64(len(m.content)), Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The positions of the parts in a bundle.
const (
	atManifest = 2 + iota
	atStatement
	atRoot
	atUKI
	atSBOM
)

// TestMixAndMatch combines the statement of a version with a part of another version, and checks
// that the combination is rejected. Both versions are releases with valid signatures.
func TestMixAndMatch(t *testing.T) {
	file, _, trust := newBundle(t)
	later, _, trustOfLater := newBundleWith(t, func(s *Source) { s.Version = "1.3.0" }, "another kernel", `{"name": "libc7"}`)
	both := Trust{Keys: append(trust.Keys, trustOfLater.Keys...), Threshold: 1}
	for _, whole := range [][]byte{file, later} {
		if _, err := ReadAll(bytes.NewReader(whole), both); err != nil {
			t.Fatal(err)
		}
	}
	for name, at := range map[string]int{"root image": atRoot, "unified kernel image": atUKI, "bill of materials": atSBOM, "statement": atStatement} {
		mixed := members(t, file)
		mixed[at] = members(t, later)[at]
		if _, err := ReadAll(bytes.NewReader(archiveOf(t, mixed...)), both); !errors.Is(err, ErrDamaged) {
			t.Errorf("the %s of another version: %v", name, err)
		}
	}
	// The OCI manifest is for other tools. A reader of bundles ignores it.
	mixed := members(t, file)
	mixed[atManifest] = members(t, later)[atManifest]
	if s, err := ReadAll(bytes.NewReader(archiveOf(t, mixed...)), both); err != nil || s.Version != "1.2.0" {
		t.Errorf("the manifest of another version: %+v, %v", s, err)
	}
}

// TestExtraneous checks that a bundle can have no parts except those of its statement: a reader
// rejects a bundle with another member, and a statement with an unknown field.
func TestExtraneous(t *testing.T) {
	file, _, trust := newBundle(t)
	for name, at := range map[string]int{"before the statement": atStatement, "before the root image": atRoot, "before the kernel": atUKI, "before the bill of materials": atSBOM} {
		all := members(t, file)
		all = append(all[:at:at], append([]member{{"blobs/sha256/" + strings.Repeat("e", 64), []byte("a dependency")}}, all[at:]...)...)
		if s, err := ReadAll(bytes.NewReader(archiveOf(t, all...)), trust); err == nil {
			t.Errorf("a bundle with a further file %s is accepted: %+v", name, s)
		}
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := SignPayload(TypePayload, []byte(`{"version": "1.2.0", "requires": ["another"]}`), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(envelope, trustOf(t, key)); err == nil || !strings.Contains(err.Error(), `unknown field "requires"`) {
		t.Errorf("a statement with the unknown field requires: %v", err)
	}
}
