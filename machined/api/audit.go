package api

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// AuditDeps are the dependencies of service Audit.
type AuditDeps struct {
	Log *AuditLog
	// Stopping is closed at shutdown.
	Stopping <-chan struct{}
}

type auditService struct {
	api.UnimplementedAuditServer
	deps AuditDeps
}

func (s auditService) Read(r *api.ReadAuditRequest, stream grpc.ServerStreamingServer[api.AuditLine]) error {
	log, err := s.deps.Log.record(r.Refused)
	if err != nil {
		return err
	}
	for after := r.After; ; {
		grown := log.Changed()
		if err := log.Read(after, func(number uint64, line []byte) error {
			after = max(after, number) // the number of an unreadable line is 0
			return stream.Send(&api.AuditLine{Line: line})
		}); err != nil || !r.Follow {
			return endOfStream(err)
		}
		select {
		case <-grown:
		case <-stream.Context().Done():
			return endOfStream(stream.Context().Err())
		case <-s.deps.Stopping:
			return status.Error(codes.Unavailable, "the machine is shutting down")
		}
	}
}
