package debug

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/kernel/capture"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/transfer"
)

const (
	defaultCapture = time.Minute
	maxCapture     = 10 * time.Minute
	// maxCaptures bounds concurrent captures. Each has up to 1 MiB of buffers in PID 1, and 4 MiB
	// in the kernel.
	maxCaptures = 2
)

// Capture sends the packets of a link (package capture) until the time of the request is up, enough
// packets were sent, the caller disconnects, or the machine shuts down. by is the caller.
func (t *Tools) Capture(ctx context.Context, r *api.CaptureRequest, by string, send func(*api.CaptureResponse) error) error {
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
	release, ok := limits.TryAcquire(t.captures)
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "link %s: cannot capture: %d captures run at present; try again when one has ended", r.Link, maxCaptures)
	}
	c, err := capture.Open(r.Link, capture.Options{Filter: filter, Snaplen: int(r.Snaplen), Promiscuous: r.Promiscuous})
	if err != nil {
		release()
		return status.Error(captureCode(err), err.Error())
	}
	t.deps.Event("network", "operation", "capture on link "+r.Link+" started by "+by)
	limited, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		// one error, not errors.Join: the message of a joined status begins with "rpc error:"
		err := cmp.Or(panics.Do("capture", func() error { return sendPackets(limited, c, r.Count, send) }), c.Close())
		release() // before the caller sees the end, and may start the next capture
		done <- err
	}()
	late := time.NewTimer(long + transfer.StallTimeout)
	defer late.Stop()
	select {
	case err := <-done:
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	case <-late.C: // the return ends the stream, and with it a blocked Send
		return status.Errorf(codes.DeadlineExceeded, "link %s: the captured packets were not read within %v after the end", r.Link, transfer.StallTimeout)
	case <-t.deps.Stopping:
		return errStopping()
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

// sendPackets sends captured packets until the context ends, or until their number is most (0: no
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
