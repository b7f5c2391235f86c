package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/transfer"
)

// maxServe bounds a transfer to another machine: a receiver that reads slowly would keep others
// from a place. It resumes the transfer with another call, when others had their turn.
const maxServe = time.Hour

// Serve returns the function that sends data to another machine with send, which calls taken after
// each piece. It ends if no piece was taken for a while, after maxServe, and at shutdown, when
// stopping is closed; a blocked send ends after it.
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
