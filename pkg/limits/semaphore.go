package limits

import (
	"context"
	"fmt"
)

// Acquire waits for a free place in a semaphore, and returns the function that frees the place. It
// fails when ctx ends first; the error names the operation.
func Acquire(ctx context.Context, semaphore chan struct{}, operation string) (release func(), err error) {
	select {
	case semaphore <- struct{}{}:
		return func() { <-semaphore }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: timeout while other calls were running: %w", operation, context.Cause(ctx))
	}
}

// TryAcquire takes a free place in a semaphore without waiting, and returns the function that frees
// the place. ok is false if no place is free.
func TryAcquire(semaphore chan struct{}) (release func(), ok bool) {
	select {
	case semaphore <- struct{}{}:
		return func() { <-semaphore }, true
	default:
		return nil, false
	}
}
