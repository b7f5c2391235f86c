package machinetest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// files maps the paths of files of a fake machine to their contents. The file /proc/large is larger
// than a message, which has at most 8 bytes of it.
var files = map[string]string{"/proc/large": "0123456789", "/proc/version": "Linux version 6.12\n"}

// ReadFile implements api.MachineServer.
func (s *machineService) ReadFile(r *api.ReadFileRequest, stream grpc.ServerStreamingServer[api.ReadFileResponse]) error {
	text, known := files[r.Path]
	if !known {
		return status.Errorf(codes.InvalidArgument, "%s: is not on the allow-list; what may be: /proc", r.Path)
	}
	const most = 8
	text = text[min(int(r.Offset), len(text)):]
	if r.Path == "/proc/large" && len(text) > most {
		return stream.Send(&api.ReadFileResponse{Chunk: []byte(text[:most]), Truncated: true})
	}
	return stream.Send(&api.ReadFileResponse{Chunk: []byte(text)})
}

// ListFiles implements api.MachineServer.
func (s *machineService) ListFiles(_ context.Context, r *api.ListFilesRequest) (*api.ListFilesResponse, error) {
	switch r.Path {
	case "/":
		return &api.ListFilesResponse{Entries: []*api.FileEntry{{Name: "proc", Mode: "dr-xr-xr-x", Modified: now}}}, nil
	case "/proc":
		return &api.ListFilesResponse{Truncated: true, Entries: []*api.FileEntry{
			{Name: "net", Mode: "Lrwxrwxrwx", Size: 8, Modified: now, Target: "self/net"}, {Name: "version", Mode: "-r--r--r--", Modified: now},
		}}, nil
	}
	return nil, status.Errorf(codes.NotFound, "%s: is not there", r.Path)
}
