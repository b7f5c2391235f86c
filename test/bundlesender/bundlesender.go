// Package bundlesender uploads bundles to machines, for the test programs.
package bundlesender

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// Send uploads the part of the bundle that the machine does not have yet, and returns the version
// of the bundle. It does not wait for the upgrade, which the machine performs without the client.
func Send(ctx context.Context, c *client.Client, bundle io.ReadSeeker) (version string, err error) {
	hash := sha256.New()
	size, err := io.Copy(hash, bundle)
	if err != nil {
		return "", err
	}
	digest := hex.EncodeToString(hash.Sum(nil))
	offer, err := c.Upgrade.BeginUpload(ctx, &api.BeginUploadRequest{Sha256: digest, Size: size})
	if err != nil {
		return "", err
	}
	if _, err := bundle.Seek(offer.Received, io.SeekStart); err != nil {
		return "", err
	}
	stream, err := c.Upgrade.Upload(ctx)
	if err != nil {
		return "", err
	}
	chunk := make([]byte, 1<<20)
	// A failed Send ends the loop. CloseAndRecv then returns the reason of the failure.
	for next := (&api.UploadBundleRequest{Sha256: digest, Offset: offer.Received}); stream.Send(next) == nil; {
		n, err := bundle.Read(chunk)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		next = &api.UploadBundleRequest{Chunk: chunk[:n]}
	}
	begun, err := stream.CloseAndRecv()
	return begun.GetTo(), err
}
