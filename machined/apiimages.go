package main

import (
	"context"
	"errors"
	"io/fs"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// The methods of package images.

type imageAPI struct {
	api.UnimplementedImageServer
	m *machine
}

func (a imageAPI) Import(stream grpc.ClientStreamingServer[api.ImportImageRequest, api.ImportImageResponse]) error {
	if err := a.m.containerdReady(); err != nil {
		return err
	}
	archive := &transfer.Chunks[*api.ImportImageRequest]{Receive: stream.Recv}
	images, err := a.m.images.Import(stream.Context(), archive, caller(stream.Context()))
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return stream.SendAndClose(&api.ImportImageResponse{Images: toImages(images)})
}

func (a imageAPI) List(ctx context.Context, _ *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	if err := a.m.containerdReady(); err != nil {
		return nil, err
	}
	images, err := a.m.images.List(ctx)
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
func (a imageAPI) checkCaller(ctx context.Context) error {
	if err := callerid.FromContext(ctx).RequireMachine(); err != nil {
		return err
	}
	return a.m.containerdReady()
}

func (a imageAPI) Resolve(ctx context.Context, r *api.ResolveImageRequest) (*api.ResolveImageResponse, error) {
	if err := a.checkCaller(ctx); err != nil {
		return nil, err
	}
	found, err := a.m.images.Find(ctx, r.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return &api.ResolveImageResponse{}, nil
	} else if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.ResolveImageResponse{Digest: found.Digest.String(), MediaType: found.MediaType, Size: found.Size}, nil
}

func (a imageAPI) ReadBlob(r *api.ReadBlobRequest, stream grpc.ServerStreamingServer[api.ReadBlobResponse]) error {
	if err := a.checkCaller(stream.Context()); err != nil {
		return err
	}
	return a.m.images.SendBlob(stream.Context(), r.Digest, callerid.FromContext(stream.Context()).ID(), func(piece []byte) error {
		return stream.Send(&api.ReadBlobResponse{Chunk: piece})
	})
}
