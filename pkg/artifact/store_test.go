package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shelf is a source that records the digests of the requested blobs.
type shelf struct {
	blobs map[string][]byte
	asked []string
}

func (s *shelf) put(content []byte) string {
	sum := sha256.Sum256(content)
	s.blobs[hex.EncodeToString(sum[:])] = content
	return hex.EncodeToString(sum[:])
}

func (s *shelf) Open(_ context.Context, b Blob) (io.ReadCloser, error) {
	s.asked = append(s.asked, b.SHA256)
	content, there := s.blobs[b.SHA256]
	if !there {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// TestStore checks that an artifact is fetched only once, stays until it is pruned, and that damage
// is found and repaired.
func TestStore(t *testing.T) {
	from := &shelf{blobs: map[string][]byte{}}
	a, b, c := []byte("a: 1"), []byte("b: 1"), []byte("c: 1")
	from.put(a)
	from.put(c)
	one := from.put(manifest(a, b))
	two := from.put(manifest(a, c))
	s := Store{Dir: filepath.Join(t.TempDir(), "lib", "addons"), Group: os.Getgid()}

	if err := s.Verify(one); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Verify before the first Fetch: %v", err)
	}
	if err := s.Fetch(t.Context(), one, from); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Fetch from a source without one of the layers: %v", err)
	}
	if err := s.Verify(one); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Verify after a Fetch that failed: %v", err)
	}
	from.put(b)
	from.asked = nil
	if err := s.Fetch(t.Context(), one, from); err != nil || len(from.asked) != 2 {
		t.Fatalf("second Fetch: %v, requested %q, want the missing layer and one other blob", err, from.asked)
	}
	if err := s.Fetch(t.Context(), two, from); err != nil {
		t.Fatal(err)
	}
	texts, err := s.Texts(one)
	if err != nil || len(texts) != 2 || texts[0] != (Text{"0.yaml", "a: 1"}) || texts[1] != (Text{"1.yaml", "b: 1"}) {
		t.Errorf("%v, %v", texts, err)
	}
	for _, file := range []string{s.Dir, s.path(one)} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s: %v, %v; the manifests may be Secrets", file, info.Mode(), err)
		}
	}

	if info, err := os.Stat(filepath.Dir(s.Dir)); err != nil || info.Mode().Perm()&0o005 != 0o005 {
		t.Errorf("parent directory: mode %v, %v; other users must be able to enter it", info.Mode(), err)
	}

	layers, err := s.layers(one)
	if err != nil {
		t.Fatal(err)
	}
	damaged := s.path(layers[1].SHA256)
	if err := errors.Join(os.Chmod(damaged, 0o600), os.WriteFile(damaged, []byte("c: 1"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Texts(one); !errors.Is(err, ErrDamaged) {
		t.Errorf("a layer with changed content: %v", err)
	}
	if err := s.Verify(one); !errors.Is(err, ErrDamaged) {
		t.Errorf("a layer with changed content: %v", err)
	}
	if err := errors.Join(s.Fetch(t.Context(), one, from), s.Verify(one)); err != nil {
		t.Errorf("Fetch of a damaged artifact: %v", err)
	}

	if _, err := s.Prune([]string{strings.Repeat("0", 64)}); err == nil || s.Verify(one) != nil {
		t.Errorf("Prune that retains a missing artifact returned no error, or removed a stored artifact: %v", err)
	}
	if n, err := s.Prune([]string{two}); n != 2 || err != nil || s.Verify(two) != nil || !errors.Is(s.Verify(one), fs.ErrNotExist) {
		t.Errorf("Prune removed %d files, %v; Verify of the retained artifact: %v; of the pruned artifact: %v", n, err, s.Verify(two), s.Verify(one))
	}
	if n, err := s.Prune(nil); n != 3 || err != nil {
		t.Errorf("Prune removed %d files, %v", n, err)
	}
	if n, err := (Store{Dir: filepath.Join(s.Dir, "none")}).Prune(nil); n != 0 || err != nil {
		t.Errorf("Prune without a directory: %d, %v", n, err)
	}
}

// TestFetchRefuses checks that Fetch rejects wrong blobs of a source, and leaves no file of them.
func TestFetchRefuses(t *testing.T) {
	a := []byte("a: 1")
	for what, c := range map[string]struct {
		change func(s *shelf, sum string)
		want   string
	}{
		"another manifest":           {func(s *shelf, sum string) { s.blobs[sum] = manifest([]byte("b: 1")) }, "does not match"},
		"an endless manifest":        {func(s *shelf, sum string) { s.blobs[sum] = make([]byte, MaxManifest+1) }, "more than 1 MiB"},
		"another layer":              {func(s *shelf, _ string) { s.blobs[sumOf(a)] = []byte("b: 1") }, "does not match"},
		"a longer layer":             {func(s *shelf, _ string) { s.blobs[sumOf(a)] = []byte("a: 1 and more") }, "does not match"},
		"a shorter layer":            {func(s *shelf, _ string) { s.blobs[sumOf(a)] = []byte("a") }, "does not match"},
		"neither manifest nor layer": {func(s *shelf, _ string) { clear(s.blobs) }, "file does not exist"},
	} {
		from := &shelf{blobs: map[string][]byte{}}
		from.put(a)
		sum := from.put(manifest(a))
		c.change(from, sum)
		s := Store{Dir: t.TempDir(), Group: os.Getgid()}
		if err := s.Fetch(t.Context(), sum, from); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		if left, err := os.ReadDir(s.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s: the files %v remain, %v", what, left, err)
		}
	}
}

// TestAnyOrder checks that the store accepts a lower version after a higher one, and the reverse.
// The store knows no order of versions, so no stored artifact prevents the storage of another
// artifact (fast-forward, docs/updates.md).
func TestAnyOrder(t *testing.T) {
	from := &shelf{blobs: map[string][]byte{}}
	low, high := []byte("version: 1"), []byte("version: 99999")
	from.put(low)
	from.put(high)
	first, second := from.put(manifest(high)), from.put(manifest(low))
	s := Store{Dir: t.TempDir(), Group: os.Getgid()}
	for _, sum := range []string{first, second, first} {
		if err := errors.Join(s.Fetch(t.Context(), sum, from), s.Verify(sum)); err != nil {
			t.Error(err)
		}
		if _, err := s.Prune([]string{sum}); err != nil {
			t.Error(err)
		}
	}
}

// endless is a source with layers that are followed by an endless stream of zeros.
type endless struct {
	*shelf
	read int
}

func (e *endless) Open(ctx context.Context, b Blob) (io.ReadCloser, error) {
	first, err := e.shelf.Open(ctx, b)
	if err != nil || b.Size < 0 {
		return first, err
	}
	return io.NopCloser(io.MultiReader(first, e)), nil
}

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	if e.read += len(p); e.read > 1<<20 {
		return 0, errors.New("the test ends the data")
	}
	return len(p), nil
}

// TestEndless checks that Fetch stops soon after it has read the size of a layer that the manifest
// states.
func TestEndless(t *testing.T) {
	from := &endless{shelf: &shelf{blobs: map[string][]byte{}}}
	a := []byte("a: 1")
	from.put(a)
	sum := from.put(manifest(a))
	s := Store{Dir: t.TempDir(), Group: os.Getgid()}
	if err := s.Fetch(t.Context(), sum, from); err == nil || !strings.Contains(err.Error(), "does not match the digest or the size of 4 bytes") || from.read > 1<<16 {
		t.Errorf("%v, after %d bytes beyond the layer", err, from.read)
	}
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
