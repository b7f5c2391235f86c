package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// noImages has no image.
type noImages struct{ Images }

func (noImages) Find(context.Context, string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, fs.ErrNotExist
}

// TestResolveCallers checks that only machines of the cluster can look for images.
func TestResolveCallers(t *testing.T) {
	s := imageService{images: noImages{}, containerdReady: func() error { return nil }}
	for _, who := range []context.Context{called(t, "join", ""), called(t, "reader", ""), called(t, "admin", ""), called(t, "", ""), t.Context()} {
		if _, err := s.Resolve(who, &api.ResolveImageRequest{Name: "example.com/web:1"}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Resolve of %v: %v", who, err)
		}
	}
	for _, ticket := range []string{"", "1a"} {
		if _, err := s.Resolve(called(t, "machine", ticket), &api.ResolveImageRequest{Name: "example.com/web:1"}); err != nil {
			t.Errorf("Resolve of a machine with ticket %q: %v", ticket, err)
		}
	}
}

// TestImportError checks the code of an import that fails. A fault of the archive is
// InvalidArgument. If containerd is unavailable or the disk is full, the code of containerd
// remains. After the caller has disconnected, the code is Canceled.
func TestImportError(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		code codes.Code
	}{
		{t.Context(), errors.New("layer 2: unexpected EOF"), codes.InvalidArgument},
		{t.Context(), fmt.Errorf("layer 2: %w", status.Error(codes.NotFound, "no such blob")), codes.InvalidArgument},
		{t.Context(), fmt.Errorf("layer 2: %w", status.Error(codes.Unavailable, "containerd stops")), codes.Unavailable},
		{t.Context(), fmt.Errorf("layer 2: %w", status.Error(codes.ResourceExhausted, "no space left")), codes.ResourceExhausted},
		{left, errors.New("layer 2: unexpected EOF"), codes.Canceled},
	} {
		if err := importError(c.ctx, c.err); status.Code(err) != c.code {
			t.Errorf("%v: %v, want %v", c.err, err, c.code)
		}
	}
}
