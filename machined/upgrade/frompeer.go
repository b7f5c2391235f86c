package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How a machine fetches the running version of a peer:
//
//  1. The fetching machine (Fetch) connects to the peer with its certificate of the machine CA. The
//     certificate permits only the calls DescribeBundle and Download of this service.
//  2. The peer makes a bundle of the files on its disk: the running root, its boot image, and their
//     signed statement. It first reads all files, and serves the bundle only if they match the
//     statement (server.go).
//  3. The fetching machine treats the bundle like any other bundle (receive.go).

// dialTimeout is the longest time to connect to a peer.
const dialTimeout = 20 * time.Second

// peer is a bundleSource: another machine, with the description of the bundle that it serves.
type peer struct {
	endpoint client.Endpoint
	bundle   *api.DescribeBundleResponse
}

// findPeer requests the description of the bundle that the peer at an address serves.
func (r *Receiver) findPeer(ctx context.Context, address string) (*peer, error) {
	p := new(peer)
	var err error
	if p.endpoint, err = r.deps.PeerEndpoint(address); err != nil {
		return nil, fmt.Errorf("upgrade refused: %w; or upload the bundle", err)
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := client.Dial(dialing, p.endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if p.bundle, err = conn.Upgrade.DescribeBundle(ctx, &api.DescribeBundleRequest{}); err != nil {
		return nil, fmt.Errorf("machine %s: %s", address, status.Convert(err).Message())
	}
	return p, nil
}

func (p *peer) SHA256() string { return p.bundle.Sha256 }

func (p *peer) Size() int64 { return p.bundle.Size }

func (p *peer) Reader(ctx context.Context, at int64) io.Reader {
	return transfer.ResumingReader(at, p.bundle.Size, func(at int64) (io.ReadCloser, error) { return p.open(ctx, at) })
}

// failed returns an error of the peer with the address of the peer.
func (p *peer) failed(err error) error {
	return fmt.Errorf("machine %s: %s", p.endpoint.Address, status.Convert(err).Message())
}

// open connects to the peer and downloads its bundle from an offset (at).
func (p *peer) open(ctx context.Context, at int64) (io.ReadCloser, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.Dial(dialing, p.endpoint)
	if err != nil {
		return nil, err
	}
	// the caller may end ctx without a call of Close
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	stream, err := c.Upgrade.Download(ctx, &api.DownloadBundleRequest{Sha256: p.bundle.Sha256, Offset: at})
	if err != nil {
		stop()
		_ = c.Close() // no data was received
		return nil, p.failed(err)
	}
	receive := func() (*api.DownloadBundleResponse, error) {
		r, err := stream.Recv()
		if err != nil && !errors.Is(err, io.EOF) {
			err = p.failed(err)
		}
		return r, err
	}
	return &transfer.Chunks[*api.DownloadBundleResponse]{Receive: receive, CloseFunc: func() error {
		stop()
		return c.Close()
	}}, nil
}
