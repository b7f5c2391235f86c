package upgrade

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// servedBundle describes the bundle of the running version that the machine serves to peers.
type servedBundle struct {
	statement []byte // the statement with its signatures
	root, uki string // paths of the root partition and of the copy of the boot image
	sha256    string // of the bundle, in lower-case hexadecimal
	size      int64  // of the bundle, in bytes
}

// Server serves the running version to peers, and its bill of materials to clients. All methods
// are safe for concurrent use.
type Server struct {
	deps      *Deps
	progress  progress
	esp       *esp.Partition
	downloads *limits.Limiter // limits downloads
	sbomReads *limits.Limiter // limits ReadSBOM
	// statementReads bounds the time and number of reads of the statement for callers of ReadSBOM.
	statementReads limits.Bounded

	// makeBundle makes the bundle; tests replace it.
	makeBundle func() (*servedBundle, error)

	mu     sync.Mutex    // guards the fields below; its holder reads no file
	making chan struct{} // closed when the running attempt ends; nil if no attempt runs
	bundle *servedBundle // nil until an attempt has succeeded
	err    error         // error of the last attempt; nil after a success
	failed time.Time
}

func newServer(d *Deps, p progress, partition *esp.Partition) *Server {
	s := &Server{
		deps: d, progress: p, esp: partition, downloads: limits.NewLimiter(maxDownloads, maxDownloadsPerMachine),
		sbomReads: limits.NewLimiter(maxSBOMReads, maxSBOMReadsPerCaller),
	}
	s.makeBundle = s.readBundle
	return s
}

// bootImage is the file name of the copy of the boot image that the machine serves to peers. The
// file is in the directory of the received bundle. The machine copies the boot image, because the
// ESP is mounted only for a short time.
const bootImage = "given.efi"

// servedBundle returns the bundle that this machine serves, or an error. The first call starts an
// attempt to make the bundle, and the Server retains the bundle until shutdown. A caller waits for
// the attempt until ctx ends; the attempt continues without the caller.
func (s *Server) servedBundle(ctx context.Context) (*servedBundle, error) {
	if now := s.progress.record(); now.Phase == slot.Trial && now.To == s.deps.version() {
		return nil, fmt.Errorf("version %s is on trial here; try again after its commit", s.deps.version())
	}
	if why := s.deps.storageProblem(); why != "" {
		return nil, errors.New(why)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bundle == nil && s.making == nil && time.Since(s.failed) >= bundleRetryInterval {
		s.making = make(chan struct{})
		panics.Go("bundle for peers", s.attempt)
	}
	if making := s.making; making != nil {
		s.mu.Unlock()
		select {
		case <-making:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	if s.bundle == nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s.bundle, s.err
}

// attempt makes the bundle, stores the bundle or the error, and wakes the waiting callers.
func (s *Server) attempt() {
	var made *servedBundle
	err := panics.Do("bundle for peers", func() (err error) { made, err = s.makeBundle(); return err })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bundle, s.err = made, err; err != nil {
		s.bundle, s.failed = nil, time.Now()
	}
	close(s.making)
	s.making = nil
}

// bundleRetryInterval is the delay after a failed attempt. The delay limits the load, because an
// attempt reads all files of the bundle.
const bundleRetryInterval = time.Minute

// readBundle makes the bundle from the files of the running version.
func (s *Server) readBundle() (*servedBundle, error) {
	where, err := s.deps.Disk.Slots()
	if err != nil {
		return nil, err
	}
	trust, err := s.deps.releaseKeys()
	if err != nil {
		return nil, err
	}
	g := &servedBundle{root: where.Running, uki: filepath.Join(s.deps.Files.Inbox.Dir, bootImage)}
	if g.statement, err = s.copyBootImage(g.uki); err != nil {
		return nil, err
	}
	err = g.with(s.deps.Running, func(files bundle.Copy) (err error) {
		g.sha256, g.size, err = files.Check(trust)
		return err
	})
	return g, err
}

// copyBootImage copies the boot image of the running version, and returns its signed statement.
func (s *Server) copyBootImage(name string) (signed []byte, err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	err = s.esp.Version(s.deps.version(), func(uki *os.File, statement []byte) error {
		if statement == nil {
			return fmt.Errorf("this machine has no signed statement of version %s: its image was built without an upgrade bundle", s.deps.version())
		}
		signed = statement
		_, err := io.Copy(f, uki)
		return err
	})
	return signed, errors.Join(err, f.Close())
}

// The method with opens the files of the bundle and calls do. All reads fail after the end of ctx,
// because a file that is open at shutdown would block the unmount of DATA.
func (g *servedBundle) with(ctx context.Context, do func(bundle.Copy) error) error {
	root, err := os.Open(g.root)
	if err != nil {
		return err
	}
	defer root.Close()
	uki, err := os.Open(g.uki)
	if err != nil {
		return err
	}
	defer uki.Close()
	return do(bundle.Copy{Envelope: g.statement, Root: stoppable{ctx, root}, UKI: stoppable{ctx, uki}})
}

// stoppable is an io.ReaderAt. Its reads fail after the end of its context.
type stoppable struct {
	ctx context.Context
	io.ReaderAt
}

func (s stoppable) ReadAt(p []byte, at int64) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	return s.ReaderAt.ReadAt(p, at)
}

// DescribeBundle describes the bundle that this machine serves to peers.
func (s *Server) DescribeBundle(ctx context.Context) (*api.DescribeBundleResponse, error) {
	g, err := s.servedBundle(ctx)
	if err != nil {
		return nil, cannotServe(ctx, err)
	}
	return &api.DescribeBundleResponse{Version: s.deps.version(), Sha256: g.sha256, Size: g.size}, nil
}

// cannotServe returns the status error for a caller that gets no bundle because of err.
func cannotServe(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Errorf(codes.FailedPrecondition, "bundle: cannot serve: %v", err)
}

const (
	// maxDownloads bounds the concurrent downloads. PID 1 holds some buffers of transfer.ChunkSize
	// for each download. After a broken connection, a peer can call again before this machine
	// notices the break, so each machine may have two downloads.
	maxDownloads           = 4
	maxDownloadsPerMachine = 2
)

// Download sends the bundle of this machine to a peer (by), in pieces. The request has the offset
// at which it starts.
func (s *Server) Download(ctx context.Context, r *api.DownloadBundleRequest, by string, send func(piece []byte) error) error {
	g, err := s.servedBundle(ctx)
	if err != nil {
		return cannotServe(ctx, err)
	}
	if r.Sha256 != g.sha256 || r.Offset < 0 || r.Offset > g.size {
		return status.Errorf(codes.Aborted, "bundle: this machine serves %s of %d bytes, and not byte %d of %s; ask for its description again", g.sha256, g.size, r.Offset, r.Sha256)
	}
	leave, _, why := s.downloads.Acquire(by)
	switch {
	case errors.Is(why, limits.ErrReached):
		return status.Errorf(codes.ResourceExhausted, "this machine serves its version to %d machines at present; try again later", maxDownloads)
	case errors.Is(why, limits.ErrCallerReached):
		return status.Errorf(codes.ResourceExhausted, "this machine serves its version to the same machine %d times already; try again in a minute", maxDownloadsPerMachine)
	}
	return s.deps.Serve(ctx, func(ctx context.Context, taken func()) error {
		defer leave()
		return g.send(ctx, r.Offset, func(p []byte) error {
			defer taken()
			return send(p)
		})
	})
}

// send passes the pieces of the bundle after an offset to the function to.
func (g *servedBundle) send(ctx context.Context, offset int64, to func([]byte) error) error {
	pieces := bufio.NewWriterSize(&skipWriter{skip: offset, to: to}, transfer.ChunkSize)
	if err := g.with(ctx, func(c bundle.Copy) error { return c.Write(pieces) }); err != nil {
		return err
	}
	return pieces.Flush()
}

// skipWriter calls a function with the written data, but drops the first skip bytes.
type skipWriter struct {
	skip int64
	to   func([]byte) error
}

func (a *skipWriter) Write(p []byte) (int, error) {
	n := min(a.skip, int64(len(p)))
	a.skip -= n
	if int(n) == len(p) {
		return len(p), nil
	}
	return len(p), a.to(p[n:])
}
