package limits

import (
	"context"
	"time"
)

// Within returns a context for an operation that has files on DATA open: it ends with ctx, after
// most, and when stopping is done, because the files would block the unmount at shutdown.
func Within(ctx, stopping context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	stop := context.AfterFunc(stopping, cancel)
	return ctx, func() { stop(); cancel() }
}
