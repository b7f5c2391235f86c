package api

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/api"
)

// Debug has the tools for the diagnosis of this machine (package debug of machined). The errors are
// gRPC statuses.
type Debug interface {
	Capture(ctx context.Context, r *api.CaptureRequest, by string, send func(*api.CaptureResponse) error) error
	Profile(ctx context.Context, process, kind string, duration time.Duration) ([]byte, error)
	// If all is true, ReadFile and ListFiles permit also the files that only an admin can read.
	ReadFile(ctx context.Context, path string, offset int64, all bool, send func(*api.ReadFileResponse) error) error
	ListFiles(ctx context.Context, path string, all bool) (*api.ListFilesResponse, error)
	// StoredKernelLog sends the kernel log of the previous boot or of a crash.
	StoredKernelLog(r *api.KernelLogRequest, send func(*api.LogLine) error) error
}

type debugService struct {
	api.UnimplementedDebugServer
	debug Debug
}

func (s debugService) Capture(r *api.CaptureRequest, stream grpc.ServerStreamingServer[api.CaptureResponse]) error {
	return endOfStream(s.debug.Capture(stream.Context(), r, caller(stream.Context()), stream.Send))
}

func (s debugService) Profile(ctx context.Context, r *api.ProfileRequest) (*api.ProfileResponse, error) {
	text, err := s.debug.Profile(ctx, r.Process, r.Kind, r.GetDuration().AsDuration())
	if err != nil {
		return nil, err
	}
	return &api.ProfileResponse{Profile: text}, nil
}
