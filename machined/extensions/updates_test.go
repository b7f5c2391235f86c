package extensions

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
)

// The tests of this file show that a machine rejects attacks; docs/updates.md has the table of
// attacks.

// useMirror makes a source the first source of the machine; the second is the registry.
func (f *fixture) useMirror(from artifact.Source) {
	f.manager.deps.Sources = func(*config.Config, config.Artifact) []Source {
		return []Source{{"mirror", from}, {"registry registry.example.com", f.registry}}
	}
}

// TestMaliciousMirror makes a mirror the first source of a machine. The mirror sends other bytes,
// or the files of another extension. The test checks that the machine then fetches the extension
// from the registry.
func TestMaliciousMirror(t *testing.T) {
	for name, lie := range map[string]func(f *fixture, wanted config.Artifact, mirror *memory){
		"another manifest": func(f *fixture, wanted config.Artifact, mirror *memory) {
			other := f.publish("x", "0.1.0", nil) // an earlier version, with a valid signature
			mirror.blobs[wanted.SHA256] = f.registry.blobs[other.SHA256]
		},
		"another statement and image": func(f *fixture, wanted config.Artifact, mirror *memory) {
			for sum, content := range f.registry.blobs {
				mirror.blobs[sum] = bytes.ToUpper(content)
			}
			mirror.blobs[wanted.SHA256] = f.registry.blobs[wanted.SHA256]
		},
		"an incomplete image": func(f *fixture, _ config.Artifact, mirror *memory) {
			for sum, content := range f.registry.blobs {
				mirror.blobs[sum] = content[:min(len(content), 1<<14)]
			}
		},
		"no files": func(*fixture, config.Artifact, *memory) {},
	} {
		f := newFixture(t)
		mirror := &memory{blobs: map[string][]byte{}}
		wanted := f.publish("x", "0.2.0", nil)
		lie(f, wanted, mirror)
		f.useMirror(mirror)
		if !f.manager.round(t.Context(), f.configure(wanted)) || f.phases() != "x pending" {
			t.Errorf("%s: %s, %q", name, f.phases(), f.events)
		}
	}
}

// endless is a source that, after the content of one of its files, sends zeros without an end.
type endless struct {
	from *memory
	sum  string // the digest of this file
	read int64  // how many of the zeros were read, in bytes
}

func (e *endless) Open(ctx context.Context, b artifact.Blob) (io.ReadCloser, error) {
	first, err := e.from.Open(ctx, b)
	if err != nil || b.SHA256 != e.sum {
		return first, err
	}
	return io.NopCloser(io.MultiReader(first, e)), nil
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read += int64(len(p)); e.read > 4*extension.MaxStatement {
		return 0, errors.New("the test ends the data")
	}
	clear(p)
	return len(p), nil
}

// TestEndless checks that a machine stops reading a file that does not end: a manifest or statement
// at the permitted size, an image at the size in its signed statement. The machine then stores no
// file.
func TestEndless(t *testing.T) {
	for _, part := range []string{"manifest", "statement", "image"} {
		f := newFixture(t)
		wanted := f.publish("x", "0.2.0", nil)
		statement, image, err := extension.Parts(f.registry.blobs[wanted.SHA256])
		if err != nil {
			t.Fatal(err)
		}
		sum := map[string]string{"manifest": wanted.SHA256, "statement": statement.SHA256, "image": image.SHA256}[part]
		source := &endless{from: f.registry, sum: sum}
		f.manager.deps.Sources = func(*config.Config, config.Artifact) []Source {
			return []Source{{"mirror", source}}
		}
		if f.manager.round(t.Context(), f.configure(wanted)) || source.read == 0 || source.read > 2*extension.MaxStatement {
			t.Errorf("%s: %d bytes were read after the end of the file, %q", part, source.read, f.events)
		}
		states, _ := f.manager.States().Get()
		if want := map[string]string{"manifest": "has more than 65536 bytes", "statement": "has more than 2097152 bytes", "image": "does not match the digest or the size"}[part]; !strings.Contains(states[0].Problem, want) {
			t.Errorf("%s: %+v", part, states)
		}
		if entries, _ := os.ReadDir(f.manager.deps.Store.Dir); len(entries) != 0 {
			t.Errorf("%s: %v is stored", part, entries)
		}
	}
}

// TestAnyOrder checks that a machine accepts the versions of an extension in any order, also a
// lower version after a higher one. The machine records no versions, and the configuration names a
// digest.
func TestAnyOrder(t *testing.T) {
	f := newFixture(t)
	high := f.publish("x", "0.2.0", func(s *extension.Statement) { s.Version = "99999" })
	low := f.publish("x", "0.2.0", func(s *extension.Statement) { s.Version = "1" })
	for _, c := range []config.Artifact{high, low, high} {
		if !f.manager.round(t.Context(), f.configure(c)) || f.phases() != "x pending" {
			t.Errorf("%s, %q", f.phases(), f.events)
		}
		states, _ := f.manager.States().Get()
		if states[0].Image != c.String() {
			t.Errorf("%+v is used, want %s", states[0], c)
		}
	}
}
