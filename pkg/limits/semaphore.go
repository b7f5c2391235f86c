package limits

import (
	"context"
	"fmt"
)

// Acquire waits for a free place in a semaphore until ctx ends. The error names the operation;
// release frees the place.
func Acquire(ctx context.Context, semaphore chan struct{}, operation string) (release func(), err error) {
	select {
	case semaphore <- struct{}{}:
		return func() { <-semaphore }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: timeout while other calls were running: %w", operation, context.Cause(ctx))
	}
}

// TryAcquire takes a free place in a semaphore without waiting; ok is false if there is none.
// release frees the place.
func TryAcquire(semaphore chan struct{}) (release func(), ok bool) {
	select {
	case semaphore <- struct{}{}:
		return func() { <-semaphore }, true
	default:
		return nil, false
	}
}
