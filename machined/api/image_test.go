package api

import (
	"context"
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
