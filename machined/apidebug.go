package main

import (
	"context"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
)

// The methods of package debug.

type debugAPI struct {
	api.UnimplementedDebugServer
	m *machine
}

func (a debugAPI) Capture(r *api.CaptureRequest, stream grpc.ServerStreamingServer[api.CaptureResponse]) error {
	return endOfStream(a.m.debug.Capture(stream.Context(), r, caller(stream.Context()), stream.Send))
}

func (a debugAPI) Profile(ctx context.Context, r *api.ProfileRequest) (*api.ProfileResponse, error) {
	text, err := a.m.debug.Profile(ctx, r.Process, r.Kind, r.GetDuration().AsDuration())
	if err != nil {
		return nil, err
	}
	return &api.ProfileResponse{Profile: text}, nil
}

func (a machineAPI) ReadFile(r *api.ReadFileRequest, stream grpc.ServerStreamingServer[api.ReadFileResponse]) error {
	return a.m.debug.ReadFile(stream.Context(), r.Path, r.Offset, callerid.FromContext(stream.Context()).IsAdmin(), stream.Send)
}

func (a machineAPI) ListFiles(ctx context.Context, r *api.ListFilesRequest) (*api.ListFilesResponse, error) {
	return a.m.debug.ListFiles(ctx, r.Path, callerid.FromContext(ctx).IsAdmin())
}
