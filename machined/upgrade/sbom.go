package upgrade

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// How a client gets the bill of materials of the running version. The document is a file of the
// verity root, and the signed statement of the version has its digest. This machine compares the
// document with the digest. The client repeats the comparison and also verifies the signatures,
// because a machine knows the keys for later versions, but not always the keys of its own version.

const (
	// sbomChunk is the largest size of a part of the document in a message, in bytes.
	sbomChunk = 64 << 10
	// maxSBOMReads and maxSBOMReadsPerCaller bound the concurrent reads, because each read has a
	// buffer of sbomChunk in PID 1.
	maxSBOMReads          = 4
	maxSBOMReadsPerCaller = 2
)

// ReadSBOM sends the signed statement and the bill of materials of the running version to a caller
// (by). If the document does not match the statement, ReadSBOM sends nothing and returns an error.
func (s *Server) ReadSBOM(ctx context.Context, by string, send func(*api.ReadSBOMResponse) error) error {
	leave, _, why := s.sbomReads.Acquire(by)
	if why != nil {
		return status.Errorf(codes.ResourceExhausted, "bill of materials: at most %d calls read it at a time, and %d of one caller; try again when one has ended", maxSBOMReads, maxSBOMReadsPerCaller)
	}
	return s.deps.Serve(ctx, func(ctx context.Context, taken func()) error {
		defer leave()
		return s.sendSBOM(ctx, func(r *api.ReadSBOMResponse) error {
			defer taken()
			return send(r)
		})
	})
}

// sendSBOM compares the document with the statement, and sends both if they match.
func (s *Server) sendSBOM(ctx context.Context, send func(*api.ReadSBOMResponse) error) error {
	file := s.deps.Files.SBOM
	statement, err := limits.Read(ctx, &s.statementReads, "statement", limits.StateTimeout, s.readStatement)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "bill of materials: cannot read the signed statement of version %s, so the document cannot be checked: %v; `orlopctl cat %s` shows it unchecked",
			s.deps.version(), err, file)
	}
	if err := checkSBOM(file, statement, s.deps.version()); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "bill of materials: %v", err)
	}
	defer f.Close()
	next := &api.ReadSBOMResponse{Statement: statement}
	chunks := bufio.NewWriterSize(&skipWriter{to: func(p []byte) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		next.Chunk = p
		err := send(next)
		next = &api.ReadSBOMResponse{}
		return err
	}}, sbomChunk)
	if _, err := io.Copy(chunks, f); err != nil {
		return err
	}
	return chunks.Flush()
}

// checkSBOM returns a status error if a file does not have the digest in the signed statement of a
// version. A nil statement permits every file.
func checkSBOM(file string, statement []byte, version string) error {
	if statement == nil {
		return nil
	}
	s, err := bundle.ParseUnverified(statement)
	if err == nil && s.Version != version {
		err = fmt.Errorf("the statement describes version %s", s.Version)
	}
	if err != nil {
		return status.Errorf(codes.DataLoss, "bill of materials of version %s: its signed statement is wrong: %v; install the version again", version, err)
	}
	sum, size, err := safefile.SHA256(file)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "bill of materials: %v", err)
	}
	if got := (bundle.Part{SHA256: sum, Size: size}); got != s.SBOM {
		return status.Errorf(codes.DataLoss, "bill of materials of version %s: the document has %d bytes with SHA-256 %s, and the signed statement has %d with %s; the statement belongs to another build: install the version again",
			version, got.Size, got.SHA256, s.SBOM.Size, s.SBOM.SHA256)
	}
	return nil
}

// readStatement returns the signed statement of the running version; nil if there is none.
func (s *Server) readStatement(context.Context) (statement []byte, err error) {
	if s.deps.Disk.RunningSlot == "" { // the system runs from memory
		statement, err = os.ReadFile(s.deps.Files.SystemStatement)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return statement, err
	}
	err = s.esp.Version(s.deps.version(), func(_ *os.File, text []byte) error { statement = text; return nil })
	return statement, err
}
