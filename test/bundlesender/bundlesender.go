// Package bundlesender uploads upgrade bundles, for the test programs.
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

// Send uploads the part of a bundle that the machine lacks, and returns the version in it after the
// upload; the machine continues alone.
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
	// CloseAndRecv returns the reason for a failed Send
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
