package main

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How a machine fetches the running version of a peer:
//
//  1. The machine that fetches (Fetch) dials the peer with its certificate of the machine CA. That
//     permits DescribeBundle and Download, and no other call of this service.
//  2. The peer makes a bundle of the files on its disk: the running root, its boot image, and their
//     signed statement. It reads all of them before, and serves only a bundle that matches the
//     statement.
//  3. From there on it is a bundle like any other (receive.go).

// servedBundle is the running version, as served to peers.
type servedBundle struct {
	statement []byte // with its signatures
	root, uki string // files
	sha256    string // of the bundle, lower-case hexadecimal
	size      int64  // bytes
}

// bundleServer serves the running version.
type bundleServer struct {
	sync.Mutex
	bundle    *servedBundle // nil before the first call
	err       error         // why there is none, since failed
	failed    time.Time
	downloads *limits.Limiter // limits downloads
}

// bootImage is the copy of the boot image for peers: the ESP is mounted only for the time of the
// copy.
const bootImage = paths.Bundle + "/given.efi"

// servedBundle returns the bundle that this machine serves, or an error. The bundle is made at the
// first call and retained until shutdown: the running version does not change.
func (m *machine) servedBundle() (*servedBundle, error) {
	if now, _ := m.upgrade.Get(); now.Phase == slot.Trial && now.To == m.release.Version {
		return nil, fmt.Errorf("version %s is on trial here; try again after its commit", m.release.Version)
	}
	if why, _ := m.storageProblem.Get(); why != "" {
		return nil, errors.New(why)
	}
	all := &m.bundleServer
	all.Lock()
	defer all.Unlock()
	if all.bundle == nil && time.Since(all.failed) >= bundleRetryInterval {
		if all.bundle, all.err = m.makeBundle(); all.err != nil {
			all.bundle, all.failed = nil, time.Now()
		}
	}
	return all.bundle, all.err
}

// bundleRetryInterval is the delay after a failure: each attempt reads all of the files.
const bundleRetryInterval = time.Minute

// makeBundle makes the bundle that this machine serves.
func (m *machine) makeBundle() (*servedBundle, error) {
	where, err := m.slots()
	if err != nil {
		return nil, err
	}
	trust, err := m.releaseKeys()
	if err != nil {
		return nil, err
	}
	g := &servedBundle{root: where.Running, uki: bootImage}
	if g.statement, err = m.copyBootImage(g.uki); err != nil {
		return nil, err
	}
	err = g.with(m.runCtx, func(c bundle.Copy) (err error) {
		g.sha256, g.size, err = c.Check(trust)
		return err
	})
	return g, err
}

// copyBootImage copies the boot image of the running version, and returns its signed statement.
func (m *machine) copyBootImage(name string) (signed []byte, err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	err = m.esp.Version(m.release.Version, func(uki *os.File, statement []byte) error {
		if statement == nil {
			return fmt.Errorf("this machine has no signed statement of version %s: its image was built without an upgrade bundle", m.release.Version)
		}
		signed = statement
		_, err := io.Copy(f, uki)
		return err
	})
	return signed, errors.Join(err, f.Close())
}

// with opens the files for do, and stops reads once ctx has ended: an open file on DATA would block
// its unmount.
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

// stoppable ends with its context.
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

func (a upgradeAPI) DescribeBundle(context.Context, *api.DescribeBundleRequest) (*api.DescribeBundleResponse, error) {
	g, err := a.m.servedBundle()
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "bundle: cannot serve: %v", err)
	}
	return &api.DescribeBundleResponse{Version: a.m.release.Version, Sha256: g.sha256, Size: g.size}, nil
}

const (
	// maxDownloads bounds concurrent downloads: each uses some buffers of transfer.ChunkSize in PID
	// 1. A peer that lost its connection may call again before the loss is noticed.
	maxDownloads           = 4
	maxDownloadsPerMachine = 2
)

func (a upgradeAPI) Download(r *api.DownloadBundleRequest, stream grpc.ServerStreamingServer[api.DownloadBundleResponse]) error {
	g, err := a.m.servedBundle()
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "bundle: cannot serve: %v", err)
	}
	if r.Sha256 != g.sha256 || r.Offset < 0 || r.Offset > g.size {
		return status.Errorf(codes.Aborted, "bundle: this machine serves %s of %d bytes, and not byte %d of %s; ask for its description again", g.sha256, g.size, r.Offset, r.Sha256)
	}
	leave, _, why := a.m.bundleServer.downloads.Acquire(memberID(stream.Context()))
	switch {
	case errors.Is(why, limits.ErrReached):
		return status.Errorf(codes.ResourceExhausted, "this machine serves its version to %d machines at present; try again later", maxDownloads)
	case errors.Is(why, limits.ErrCallerReached):
		return status.Errorf(codes.ResourceExhausted, "this machine serves its version to the same machine %d times already; try again in a minute", maxDownloadsPerMachine)
	}
	return a.m.serve(stream.Context(), func(ctx context.Context, taken func()) error {
		defer leave()
		return g.send(ctx, r.Offset, func(p []byte) error {
			defer taken()
			return stream.Send(&api.DownloadBundleResponse{Chunk: p})
		})
	})
}

// serve sends data to another machine with send, which calls taken after each piece. It ends if no
// piece was taken for a while, and at shutdown; a blocked send ends after it.
func (m *machine) serve(ctx context.Context, send func(ctx context.Context, taken func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := transfer.Watch("giving a bundle or an image", m.runCtx.Done(), 0, func(moved func()) error { return send(ctx, moved) })
	switch {
	case errors.Is(err, transfer.ErrStalled):
		return status.Errorf(codes.DeadlineExceeded, "the receiver has read no data for %v", transfer.StallTimeout)
	case errors.Is(err, transfer.ErrStopped):
		return status.Error(codes.Unavailable, "this machine is shutting down")
	}
	return endOfStream(err)
}

// send sends the bundle from an offset, in pieces.
func (g *servedBundle) send(ctx context.Context, offset int64, to func([]byte) error) error {
	pieces := bufio.NewWriterSize(&skipWriter{skip: offset, to: to}, transfer.ChunkSize)
	if err := g.with(ctx, func(c bundle.Copy) error { return c.Write(pieces) }); err != nil {
		return err
	}
	return pieces.Flush()
}

// skipWriter drops the first skip bytes.
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

// dialTimeout bounds the connection to another machine.
const dialTimeout = 20 * time.Second

// peer is a peer with the bundle that it serves.
type peer struct {
	endpoint client.Endpoint
	bundle   *api.DescribeBundleResponse
}

// findPeer requests the description of a peer's bundle.
func (m *machine) findPeer(ctx context.Context, address string) (bundleSource, error) {
	var p peer
	var err error
	if p.endpoint, err = m.members.Peers.Endpoint(address); err != nil {
		return nil, fmt.Errorf("upgrade refused: %w; or upload the bundle", err)
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.Dial(dialing, p.endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if p.bundle, err = c.Upgrade.DescribeBundle(ctx, &api.DescribeBundleRequest{}); err != nil {
		return nil, fmt.Errorf("machine %s: %s", address, status.Convert(err).Message())
	}
	return p, nil
}

func (p peer) SHA256() string { return p.bundle.Sha256 }

func (p peer) Size() int64 { return p.bundle.Size }

func (p peer) Reader(ctx context.Context, at int64) io.Reader {
	return transfer.ResumingReader(at, p.bundle.Size, func(at int64) (io.ReadCloser, error) { return p.open(ctx, at) })
}

// open connects to the peer and downloads its bundle from an offset.
func (p peer) open(ctx context.Context, at int64) (io.ReadCloser, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.Dial(dialing, p.endpoint)
	if err != nil {
		return nil, err
	}
	// the reader may stop without a Close
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	stream, err := c.Upgrade.Download(ctx, &api.DownloadBundleRequest{Sha256: p.bundle.Sha256, Offset: at})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	receive := func() (*api.DownloadBundleResponse, error) {
		r, err := stream.Recv()
		if err != nil && !errors.Is(err, io.EOF) {
			err = fmt.Errorf("machine %s: %s", p.endpoint.Address, status.Convert(err).Message())
		}
		return r, err
	}
	return &transfer.Chunks[*api.DownloadBundleResponse]{Receive: receive, CloseFunc: func() error {
		stop()
		return c.Close()
	}}, nil
}
