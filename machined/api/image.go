package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Images are the container images of this machine (package images of machined).
type Images interface {
	Import(ctx context.Context, archive io.Reader, by string) ([]imagestore.Image, error)
	List(ctx context.Context) ([]imagestore.Image, error)
	// Find returns an imported image by its name or digest; the error is fs.ErrNotExist if there is
	// none.
	Find(ctx context.Context, name string) (ocispec.Descriptor, error)
	// SendBlob sends a blob of an imported image to another machine; its errors are gRPC statuses.
	SendBlob(ctx context.Context, digest, peer string, send func(piece []byte) error) error
}

type imageService struct {
	api.UnimplementedImageServer
	images          Images
	containerdReady func() error
}

func (s imageService) Import(stream grpc.ClientStreamingServer[api.ImportImageRequest, api.ImportImageResponse]) error {
	if err := s.containerdReady(); err != nil {
		return err
	}
	archive := &transfer.Chunks[*api.ImportImageRequest]{Receive: stream.Recv}
	images, err := s.images.Import(stream.Context(), archive, caller(stream.Context()))
	if err != nil {
		return importError(stream.Context(), err)
	}
	return stream.SendAndClose(&api.ImportImageResponse{Images: toImages(images)})
}

// importError returns the status of a failed import. The gRPC code is InvalidArgument (the archive
// is at fault), unless the caller has left or containerd does not answer or is out of space.
func importError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	code := status.Code(err)
	if !slices.Contains([]codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.DeadlineExceeded}, code) {
		code = codes.InvalidArgument
	}
	return status.Error(code, err.Error())
}

func (s imageService) List(ctx context.Context, _ *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	if err := s.containerdReady(); err != nil {
		return nil, err
	}
	images, err := s.images.List(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.ListImagesResponse{Images: toImages(images)}, nil
}

func toImages(in []imagestore.Image) []*api.ContainerImage {
	var out []*api.ContainerImage
	for _, i := range in {
		out = append(out, &api.ContainerImage{Name: i.Name, Digest: i.Digest, Size: i.Size})
	}
	return out
}

// checkCaller rejects every caller but another machine, and all callers while containerd does not
// run.
func (s imageService) checkCaller(ctx context.Context) error {
	if err := api.CallerFromContext(ctx).RequireMachine(); err != nil {
		return err
	}
	return s.containerdReady()
}

func (s imageService) Resolve(ctx context.Context, r *api.ResolveImageRequest) (*api.ResolveImageResponse, error) {
	if err := s.checkCaller(ctx); err != nil {
		return nil, err
	}
	found, err := s.images.Find(ctx, r.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return &api.ResolveImageResponse{}, nil
	} else if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.ResolveImageResponse{Digest: found.Digest.String(), MediaType: found.MediaType, Size: found.Size}, nil
}

func (s imageService) ReadBlob(r *api.ReadBlobRequest, stream grpc.ServerStreamingServer[api.ReadBlobResponse]) error {
	if err := s.checkCaller(stream.Context()); err != nil {
		return err
	}
	return s.images.SendBlob(stream.Context(), r.Digest, api.CallerFromContext(stream.Context()).ID(), func(piece []byte) error {
		return stream.Send(&api.ReadBlobResponse{Chunk: piece})
	})
}
