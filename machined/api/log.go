package api

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
	"github.com/orlop-os/orlop/pkg/supervise"
)

type logService struct {
	api.UnimplementedLogServer
	services *supervise.Manager
	// kernelStarted returns the start of the kernel, to which the times of the kernel log are
	// relative.
	kernelStarted func() (time.Time, error)
	debug         Debug
}

func (s logService) Service(r *api.ServiceLogRequest, stream grpc.ServerStreamingServer[api.LogLine]) error {
	ring, about, err := s.log(r.Service)
	if err != nil {
		return err
	}
	if about != "" {
		if err := stream.Send(&api.LogLine{Time: timestamppb.Now(), Text: about}); err != nil {
			return err
		}
	}
	send := func(l supervise.LogLine, missed uint64) error { return sendLine(stream, l, missed) }
	if r.Follow {
		return endOfStream(ring.Follow(stream.Context(), int(r.Tail), send))
	}
	return sendAll(ring.Tail(int(r.Tail)), func(l supervise.LogLine) error { return send(l, 0) })
}

// sendAll sends each line of a list.
func sendAll[T any](lines []T, send func(T) error) error {
	for _, l := range lines {
		if err := send(l); err != nil {
			return err
		}
	}
	return nil
}

// log returns the log of a service. For a component, it returns the log of the component's service,
// because the process does not record which component wrote a line; about is a line that tells the
// caller so.
func (s logService) log(name string) (ring *supervise.LogRing, about string, err error) {
	if ring, err = s.services.Log(name); err == nil {
		return ring, "", nil
	}
	all, _ := s.services.Status().Get()
	owner := serviceOf(all, name)
	if owner == "" {
		return nil, "", noService(all, name)
	}
	if ring, err = s.services.Log(owner); err != nil {
		return nil, "", noService(all, name)
	}
	return ring, fmt.Sprintf("(%s is a component of service %s: these are the lines of all its components)", name, owner), nil
}

// sendLine sends a line, and before it the number of lines that were dropped, if any.
func sendLine(stream grpc.ServerStreamingServer[api.LogLine], l supervise.LogLine, missed uint64) error {
	if missed > 0 {
		dropped := fmt.Sprintf("(%d lines were dropped here: the reader was too slow)", missed)
		if err := stream.Send(&api.LogLine{Time: timestamppb.New(l.Time), Text: dropped}); err != nil {
			return err
		}
	}
	return stream.Send(&api.LogLine{Time: timestamppb.New(l.Time), Text: l.Text})
}

func (s logService) Kernel(r *api.KernelLogRequest, stream grpc.ServerStreamingServer[api.LogLine]) error {
	if r.PreviousBoot || r.Crash {
		return s.debug.StoredKernelLog(r, stream.Send)
	}
	started, err := s.kernelStarted()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	send := func(l kmsg.Record) error {
		return stream.Send(&api.LogLine{Time: timestamppb.New(started.Add(l.At)), Text: l.Text, Priority: uint32(l.Priority)})
	}
	if r.Follow {
		return endOfStream(kmsg.Follow(stream.Context(), int(r.Tail), send))
	}
	records, err := kmsg.Tail(int(r.Tail))
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return sendAll(records, send)
}
