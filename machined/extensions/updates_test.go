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

// The tests of this file show refusals of attacks; docs/updates.md has the table.

// useMirror puts a source before the registry.
func (f *fixture) useMirror(from artifact.Source) {
	f.manager.deps.Sources = func(*config.Config, config.Artifact) []Source {
		return []Source{{"mirror", from}, {"registry registry.example.com", f.registry}}
	}
}

// TestMaliciousMirror checks that a mirror which sends other bytes, or the files of another
// extension, does not keep a machine from the extension that the registry has.
func TestMaliciousMirror(t *testing.T) {
	for name, lie := range map[string]func(f *fixture, wanted config.Artifact, mirror *memory){
		"another manifest": func(f *fixture, wanted config.Artifact, mirror *memory) {
			other := f.publish("x", "0.1.0", nil) // an earlier one, with a valid signature
			mirror.blobs[wanted.SHA256] = f.registry.blobs[other.SHA256]
		},
		"another statement and image": func(f *fixture, wanted config.Artifact, mirror *memory) {
			for sum, content := range f.registry.blobs {
				mirror.blobs[sum] = bytes.ToUpper(content)
			}
			mirror.blobs[wanted.SHA256] = f.registry.blobs[wanted.SHA256]
		},
		"an image that ends early": func(f *fixture, _ config.Artifact, mirror *memory) {
			for sum, content := range f.registry.blobs {
				mirror.blobs[sum] = content[:min(len(content), 1<<14)]
			}
		},
		"nothing": func(*fixture, config.Artifact, *memory) {},
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

// endless is a source that sends zeros without an end after one of its files.
type endless struct {
	from *memory
	sum  string // of the file
	read int64
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

// TestEndless checks that at most the permitted or the signed size of each file is read.
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
			t.Errorf("%s: %d bytes were read, %q", part, source.read, f.events)
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

// TestAnyOrder checks that no version of an extension becomes impossible by another that was there
// before: the machine records no versions, and the configuration names a digest.
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
