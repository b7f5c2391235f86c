package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/capture"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/profile"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Packet captures (package capture) and profiles (package profile).

const (
	defaultCapture = time.Minute
	maxCapture     = 10 * time.Minute
	// maxCaptures bounds concurrent captures. Each has up to 1 MiB of buffers in PID 1, and 4 MiB
	// in the kernel.
	maxCaptures = 2
)

type debugAPI struct {
	api.UnimplementedDebugServer
	m *machine
}

func (a debugAPI) Capture(r *api.CaptureRequest, stream grpc.ServerStreamingServer[api.CaptureResponse]) error {
	long := r.GetDuration().AsDuration()
	if long < 0 || long > maxCapture {
		return status.Errorf(codes.InvalidArgument, "duration: %v is not between 0 and %v", long, maxCapture)
	}
	if long == 0 {
		long = defaultCapture
	}
	filter, err := capture.Decode(r.Filter)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if r.Snaplen > capture.MaxSnaplen {
		return status.Errorf(codes.InvalidArgument, "snaplen: %d bytes exceed the limit of %d", r.Snaplen, capture.MaxSnaplen)
	}
	select {
	case a.m.captures <- struct{}{}:
	default:
		return status.Errorf(codes.ResourceExhausted, "link %s: cannot capture: %d captures run at present; try again when one has ended", r.Link, maxCaptures)
	}
	c, err := capture.Open(r.Link, capture.Options{Filter: filter, Snaplen: int(r.Snaplen), Promiscuous: r.Promiscuous})
	if err != nil {
		<-a.m.captures
		return status.Error(captureCode(err), err.Error())
	}
	a.m.events.add("network", "operation", "capture on link "+r.Link+" started by "+caller(stream.Context()))
	ctx, cancel := context.WithTimeout(stream.Context(), long)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errors.Join(panics.Do("capture", func() error { return sendPackets(ctx, c, r.Count, stream.Send) }), c.Close())
		<-a.m.captures // before the caller sees the end, and may start the next capture
		done <- err
	}()
	late := time.NewTimer(long + transfer.StallTimeout)
	defer late.Stop()
	select {
	case err := <-done:
		if stream.Context().Err() != nil {
			err = stream.Context().Err()
		}
		return endOfStream(err)
	case <-late.C: // the return ends the stream, and with it a blocked Send
		return status.Errorf(codes.DeadlineExceeded, "link %s: the captured packets were not read within %v after the end", r.Link, transfer.StallTimeout)
	case <-a.m.runCtx.Done():
		return status.Error(codes.Unavailable, "the machine is shutting down")
	}
}

func captureCode(err error) codes.Code {
	switch {
	case errors.Is(err, capture.ErrNoLink):
		return codes.NotFound
	case errors.Is(err, capture.ErrFilter):
		return codes.InvalidArgument
	}
	return codes.FailedPrecondition
}

// sendPackets sends captured packets until the context ends, or until max packets were sent (0: no
// limit).
func sendPackets(ctx context.Context, c *capture.Capture, most uint64, send func(*api.CaptureResponse) error) error {
	if err := send(&api.CaptureResponse{LinkType: uint32(c.LinkType())}); err != nil {
		return err
	}
	for sent := uint64(0); ; {
		packets, ended := c.Next(ctx)
		dropped, err := c.Dropped()
		if err != nil {
			return err
		}
		if left := most - sent; most > 0 && uint64(len(packets)) >= left {
			packets, ended = packets[:left], context.Canceled
		}
		sent += uint64(len(packets))
		next := &api.CaptureResponse{Dropped: dropped}
		for _, p := range packets {
			next.Packets = append(next.Packets, &api.Packet{TimeNs: p.Time.UnixNano(), Length: uint32(p.Length), Data: p.Data})
		}
		if err := send(next); err != nil {
			return err
		}
		switch {
		case errors.Is(ended, context.Canceled), errors.Is(ended, context.DeadlineExceeded):
			return nil // the limit is reached, or the time is up
		case ended != nil:
			return status.Error(codes.FailedPrecondition, ended.Error())
		}
	}
}

// processMachined is the name of this process for profiles.
const processMachined = "machined"

func (a debugAPI) Profile(ctx context.Context, r *api.ProfileRequest) (*api.ProfileResponse, error) {
	request, err := profile.Parse(r.Kind, r.GetDuration().AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	take, err := a.m.profileOf(r.Process)
	if err != nil {
		return nil, err
	}
	if !a.m.profileMu.TryLock() {
		return nil, status.Error(codes.ResourceExhausted, "another profile is being taken; try again when it is done")
	}
	defer a.m.profileMu.Unlock()
	text, err := take(ctx, request)
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "process %s: cannot take a profile: %v", r.Process, err)
	}
	return &api.ProfileResponse{Profile: text}, nil
}

// profileOf returns the function that takes a profile of a process.
func (m *machine) profileOf(process string) (func(context.Context, profile.Request) ([]byte, error), error) {
	if process == processMachined {
		return profile.Profile, nil
	}
	names := []string{processMachined}
	for _, s := range m.services.Services() {
		switch {
		case s.Profile == "" && s.Name == process:
			return nil, status.Errorf(codes.FailedPrecondition, "process %s: cannot take a profile: it is not a program of Orlop OS", process)
		case s.Profile == "":
			continue
		case s.Name == process:
			return func(ctx context.Context, o profile.Request) ([]byte, error) { return profile.Fetch(ctx, s.Profile, o) }, nil
		}
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return nil, status.Errorf(codes.NotFound, "process %q: has no profiles; processes with profiles: %s", process, strings.Join(names, ", "))
}
