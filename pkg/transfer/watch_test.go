package transfer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatch checks the result, and the time until the result, of a transfer that ends, stalls,
// takes too long or is stopped.
func TestWatch(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		most, stopAfter time.Duration
		pieces          int           // one piece each second, then the transfer ends or blocks
		end             error         // result of the transfer
		blocks          bool          // the transfer does not end after its last piece
		want            error         // result of Watch
		after           time.Duration // expected duration of Watch
	}{
		"complete": {pieces: 100, after: 100 * time.Second},
		"failed":   {pieces: 3, end: failed, want: failed, after: 3 * time.Second},
		"stalled":  {pieces: 3, blocks: true, want: ErrStalled, after: 3*time.Second + StallTimeout},
		"too long": {most: 10*time.Second + 1, pieces: 100, want: ErrTooLong, after: 10*time.Second + 1},
		"stopped":  {most: time.Hour, stopAfter: 5*time.Second + 1, pieces: 100, want: ErrStopped, after: 5*time.Second + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopped, unblock, ended, began := make(chan struct{}), make(chan struct{}), make(chan struct{}), time.Now()
				if c.stopAfter > 0 {
					time.AfterFunc(c.stopAfter, func() { close(stopped) })
				}
				err := Watch("a test", stopped, c.most, func(moved func()) error {
					defer close(ended)
					for range c.pieces {
						time.Sleep(time.Second)
						moved()
					}
					if c.blocks {
						<-unblock
					}
					return c.end
				})
				if took := time.Since(began); !errors.Is(err, c.want) || took != c.after {
					t.Errorf("%v after %v; want %v after %v", err, took, c.want, c.after)
				}
				close(unblock)
				<-ended
			})
		})
	}
}
