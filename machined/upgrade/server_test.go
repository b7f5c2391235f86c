package upgrade

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// wrapped is a version on a disk, and the complete bundle that is made of it.
func wrapped(t *testing.T) (*servedBundle, []byte) {
	t.Helper()
	dir := t.TempDir()
	content := make([]byte, 2<<20)
	rand.Read(content)
	file := func(name string, content []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	g := &servedBundle{root: file("root", content), uki: file("uki", content[:100_001])}
	source := bundle.Source{Version: "1.0.0", Profile: "test", Root: "root", RootImage: g.root, UKI: g.uki, SBOM: g.uki, Packed: g.uki, Time: time.Unix(0, 0)}
	if g.statement, err = source.Seal(key); err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	if err := g.with(t.Context(), func(c bundle.Copy) error { return c.Write(&all) }); err != nil {
		t.Fatal(err)
	}
	return g, all.Bytes()
}

// TestDownloadFromAnywhere checks that a download from any offset contains exactly the rest, in
// pieces that fit a message.
func TestDownloadFromAnywhere(t *testing.T) {
	g, all := wrapped(t)
	for _, offset := range []int{0, 1, 511, 512, 5_000, 1 << 20, len(all) - 1, len(all)} {
		var got bytes.Buffer
		err := g.send(t.Context(), int64(offset), func(p []byte) error {
			if len(p) == 0 || len(p) > transfer.ChunkSize {
				t.Errorf("from byte %d: a piece of %d bytes", offset, len(p))
			}
			got.Write(p)
			return nil
		})
		if err != nil || !bytes.Equal(got.Bytes(), all[offset:]) {
			t.Errorf("from byte %d: %d bytes, %v; want %d", offset, got.Len(), err, len(all)-offset)
		}
	}
}

// TestDownloadStops checks that a download ends with its caller, also before the first byte.
func TestDownloadStops(t *testing.T) {
	g, all := wrapped(t)
	gone := errors.New("gone")
	if err := g.send(t.Context(), 0, func([]byte) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("nobody takes it: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := g.send(ctx, int64(len(all)), func([]byte) error { return nil }); !errors.Is(err, gone) {
		t.Errorf("the caller has left: %v", err)
	}
}
