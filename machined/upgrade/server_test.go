package upgrade

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// seal returns the signed statement of a version, and the key that signed it.
func seal(t *testing.T, source bundle.Source) (statement []byte, key bundle.Key) {
	t.Helper()
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if statement, err = source.Seal(key); err != nil {
		t.Fatal(err)
	}
	return statement, key
}

// wrapped returns the files of a version on a disk, and the complete bundle that they form.
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
	g := &servedBundle{root: file("root", content), uki: file("uki", content[:100_001])}
	source := bundle.Source{Version: "1.0.0", Profile: "test", Root: "root", RootImage: g.root, UKI: g.uki, SBOM: g.uki, Packed: g.uki, Time: time.Unix(0, 0)}
	g.statement, _ = seal(t, source)
	var all bytes.Buffer
	if err := g.with(t.Context(), func(c bundle.Copy) error { return c.Write(&all) }); err != nil {
		t.Fatal(err)
	}
	return g, all.Bytes()
}

// TestDownloadFromAnywhere checks that a download from any offset has exactly the bytes after the
// offset, in pieces of at most transfer.ChunkSize.
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

// TestDownloadStops checks that a download ends when its caller disconnects, also before the first
// byte.
func TestDownloadStops(t *testing.T) {
	g, all := wrapped(t)
	gone := errors.New("gone")
	if err := g.send(t.Context(), 0, func([]byte) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("a caller that disconnects at the first piece: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := g.send(ctx, int64(len(all)), func([]byte) error { return nil }); !errors.Is(err, gone) {
		t.Errorf("a caller that has disconnected before the first byte: %v", err)
	}
}

// TestServedBundle checks that one attempt makes the bundle for all callers, and that a failure is
// retried after bundleRetryInterval. A caller that disconnects stops waiting, and the other callers
// still get the result.
func TestServedBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, attempts := make(chan error), 0
		d := &Deps{Release: func() buildinfo.Release { return buildinfo.Release{Version: "1.0.0"} }}
		d.Disk.StorageProblem = func() string { return "" }
		s := newServer(d, progress{state: cell.New(State{})}, nil)
		s.makeBundle = func() (*servedBundle, error) {
			attempts++
			err := <-made
			return &servedBundle{sha256: "ab"}, err
		}
		answers := make(chan error, 8)
		describe := func(ctx context.Context) {
			go func() {
				answer, err := s.DescribeBundle(ctx)
				if err == nil && answer.Sha256 != "ab" {
					err = errors.New(answer.Sha256)
				}
				answers <- err
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		describe(leaving)
		describe(t.Context())
		leave()
		if err := <-answers; status.Code(err) != codes.Canceled {
			t.Errorf("a caller that has disconnected: %v", err)
		}
		made <- errors.New("disk: cannot read")
		if err := <-answers; status.Code(err) != codes.FailedPrecondition || !strings.HasSuffix(err.Error(), "bundle: cannot serve: disk: cannot read") {
			t.Errorf("after a failure: %v", err)
		}
		describe(t.Context())
		if err := <-answers; status.Code(err) != codes.FailedPrecondition || attempts != 1 {
			t.Errorf("before bundleRetryInterval has passed: %v, %d attempts", err, attempts)
		}
		time.Sleep(bundleRetryInterval)
		describe(t.Context())
		describe(t.Context())
		made <- nil
		for range 2 {
			if err := <-answers; err != nil || attempts != 2 {
				t.Errorf("after another attempt: %v, %d attempts", err, attempts)
			}
		}
		describe(leaving)
		if err := <-answers; err != nil {
			t.Errorf("the bundle exists, but a caller waits: %v", err)
		}
	})
}
