package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/transfer"
)

// maxServe bounds a transfer to another machine: only some transfers run at a time, so a slow
// receiver would block others. A receiver resumes the transfer with another call, after the others.
const maxServe = time.Hour

// Serve returns a function that runs send. send sends data to another machine, and calls its
// callback taken after each piece that the receiver has taken. The function ends if no piece is
// taken for transfer.StallTimeout, after maxServe, and at shutdown, when stopping is closed. A send
// that is blocked then ends later, because its context is canceled.
func Serve(stopping <-chan struct{}) func(ctx context.Context, send func(ctx context.Context, taken func()) error) error {
	return func(ctx context.Context, send func(ctx context.Context, taken func()) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err := transfer.Watch("giving a bundle or an image", stopping, maxServe, func(moved func()) error { return send(ctx, moved) })
		switch {
		case errors.Is(err, transfer.ErrStalled):
			return status.Errorf(codes.DeadlineExceeded, "the receiver has read no data for %v", transfer.StallTimeout)
		case errors.Is(err, transfer.ErrTooLong):
			return status.Errorf(codes.DeadlineExceeded, "the receiver has not read all data in %v; call again for the rest", maxServe)
		case errors.Is(err, transfer.ErrStopped):
			return status.Error(codes.Unavailable, "this machine is shutting down")
		}
		return endOfStream(err)
	}
}
