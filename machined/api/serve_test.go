package api

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestServeEnds checks that a transfer to a receiver that reads nothing, or slowly, ends, and that
// a transfer of a receiver that reads all succeeds.
func TestServeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		pause  time.Duration // between two pieces
		pieces int
		code   codes.Code
		says   string
		after  time.Duration // duration of the transfer
	}{
		"fast":   {time.Millisecond, 100, codes.OK, "", 100 * time.Millisecond},
		"slow":   {10 * time.Second, 10000, codes.DeadlineExceeded, "the receiver has not read all data in 1h0m0s; call again for the rest", time.Hour},
		"silent": {30 * time.Second, 1, codes.DeadlineExceeded, "the receiver has read no data for 20s", 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ended := make(chan error, 1)
			err := Serve(nil)(t.Context(), func(ctx context.Context, taken func()) error {
				for range c.pieces {
					select {
					case <-time.After(c.pause):
						taken()
					case <-ctx.Done():
						ended <- ctx.Err()
						return ctx.Err()
					}
				}
				ended <- nil
				return nil
			})
			if took := time.Since(start); status.Code(err) != c.code || !strings.HasSuffix(status.Convert(err).Message(), c.says) || took != c.after {
				t.Errorf("%s: %v after %v, want %v after %v", name, err, took, c.says, c.after)
			}
			if err := <-ended; (err != nil) != (c.code != codes.OK) {
				t.Errorf("%s: send ended with %v", name, err)
			}
		})
	}
}
