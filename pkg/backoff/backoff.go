// Package backoff computes how long to wait before the next attempt, and waits. A Backoff holds no
// state and reads no clock, so that a pure state machine can use it; the caller counts the
// failures.
package backoff

import (
	"context"
	"time"
)

// Backoff doubles the delay with each failure in a row, from Min to Max. Both are positive, and Max
// is not smaller than Min.
type Backoff struct {
	Min time.Duration
	Max time.Duration
}

// Delay returns the delay after a number of failures in a row: Min after the first failure (or
// none), twice as long after each further failure, at most Max.
func (b Backoff) Delay(failures int) time.Duration {
	delay := b.Min
	for range failures - 1 {
		// The comparison is with half of Max, because the double of a large delay would overflow.
		if delay > b.Max/2 {
			return b.Max
		}
		delay *= 2
	}
	return min(delay, b.Max)
}

// Sleep waits for a delay. If ctx ends first, Sleep returns the cause of the end (context.Cause).
func Sleep(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
