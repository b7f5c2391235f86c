package upgrade

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/cell"
)

// sbomServer returns the Server of a machine that runs version 1.0.0 from memory, with its bill of
// materials and its signed statement. The document has several chunks.
func sbomServer(t *testing.T) (s *Server, document, statement []byte) {
	t.Helper()
	dir := t.TempDir()
	document = bytes.Repeat([]byte(`{"name": "libc6"}`+"\n"), sbomChunk/7)
	d := &Deps{
		Release: func() buildinfo.Release { return buildinfo.Release{Version: "1.0.0"} },
		Files:   Files{SBOM: filepath.Join(dir, "sbom"), SystemStatement: filepath.Join(dir, "statement")},
		Serve: func(ctx context.Context, send func(context.Context, func()) error) error {
			return send(ctx, func() {})
		},
	}
	if err := os.WriteFile(d.Files.SBOM, document, 0o600); err != nil {
		t.Fatal(err)
	}
	statement, _ = seal(t, bundle.Source{
		Version: "1.0.0", Profile: "test", Root: "root", Time: time.Unix(0, 0),
		RootImage: d.Files.SBOM, Packed: d.Files.SBOM, UKI: d.Files.SBOM, SBOM: d.Files.SBOM,
	})
	if err := os.WriteFile(d.Files.SystemStatement, statement, 0o600); err != nil {
		t.Fatal(err)
	}
	return newServer(d, progress{state: cell.New(State{})}, nil), document, statement
}

// readSBOM returns the document and the statement that ReadSBOM sends to a caller.
func readSBOM(t *testing.T, s *Server) (document, statement []byte, err error) {
	t.Helper()
	err = s.ReadSBOM(t.Context(), "rosa", func(r *api.ReadSBOMResponse) error {
		if len(r.Chunk) == 0 || len(r.Chunk) > sbomChunk || len(document) > 0 && len(r.Statement) > 0 {
			t.Errorf("after %d bytes: a chunk of %d bytes, and %d bytes of a statement", len(document), len(r.Chunk), len(r.Statement))
		}
		document, statement = append(document, r.Chunk...), append(statement, r.Statement...)
		return nil
	})
	return document, statement, err
}

// TestReadSBOM checks that a caller gets the document and the statement. If the document does not
// match the statement, the caller gets nothing of it.
func TestReadSBOM(t *testing.T) {
	s, document, statement := sbomServer(t)
	if got, signed, err := readSBOM(t, s); err != nil || !bytes.Equal(got, document) || !bytes.Equal(signed, statement) {
		t.Errorf("%d bytes, %d of the statement, %v", len(got), len(signed), err)
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		do   func()
		code codes.Code
		want string
	}{
		{"another document", func() { write(s.deps.Files.SBOM, bytes.ToUpper(document)) }, codes.DataLoss, "and the signed statement has"},
		{"a longer document", func() { write(s.deps.Files.SBOM, append(bytes.Clone(document), ' ')) }, codes.DataLoss, "the statement belongs to another build"},
		{"no document", func() { _ = os.Remove(s.deps.Files.SBOM) }, codes.FailedPrecondition, "no such file"},
		{"no envelope", func() { write(s.deps.Files.SystemStatement, []byte("{")) }, codes.DataLoss, "its signed statement is wrong"},
		{"the statement of another version", func() {
			s.deps.Release = func() buildinfo.Release { return buildinfo.Release{Version: "1.0.1"} }
		}, codes.DataLoss, "the statement describes version 1.0.0"},
	} {
		s, document, _ = sbomServer(t)
		c.do()
		got, signed, err := readSBOM(t, s)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) || len(got)+len(signed) > 0 {
			t.Errorf("%s: %d bytes, %v", c.name, len(got)+len(signed), err)
		}
	}
	s, document, _ = sbomServer(t)
	if err := os.Remove(s.deps.Files.SystemStatement); err != nil {
		t.Fatal(err)
	}
	if got, signed, err := readSBOM(t, s); err != nil || !bytes.Equal(got, document) || len(signed) > 0 {
		t.Errorf("an image without a bundle: %d bytes, %d of a statement, %v", len(got), len(signed), err)
	}
}

// TestReadSBOMLimits checks that a caller at its limit is rejected, that the end of a call permits
// the next call, and that ReadSBOM stops when its caller disconnects.
func TestReadSBOMLimits(t *testing.T) {
	s, _, _ := sbomServer(t)
	gone := errors.New("gone")
	running, refused := 0, 0
	var call func(*api.ReadSBOMResponse) error
	call = func(*api.ReadSBOMResponse) error { // makes another call while this call runs
		running++
		if err := s.ReadSBOM(t.Context(), "rosa", call); status.Code(err) == codes.ResourceExhausted {
			refused++
		}
		return gone
	}
	for range 2 {
		running, refused = 0, 0
		if err := s.ReadSBOM(t.Context(), "rosa", call); !errors.Is(err, gone) || running != maxSBOMReadsPerCaller || refused != 1 {
			t.Errorf("%d calls at a time, %d refused, %v", running, refused, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	sent := 0
	if err := s.ReadSBOM(ctx, "rosa", func(*api.ReadSBOMResponse) error { sent++; cancel(); return nil }); !errors.Is(err, context.Canceled) || sent != 1 {
		t.Errorf("after the caller has disconnected: %d chunks, %v", sent, err)
	}
}
