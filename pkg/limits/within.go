package limits

import (
	"context"
	"time"
)

// Within returns a context for an operation that has files on DATA open. The context ends with ctx,
// after the time `most`, and when the context `stopping` ends. The caller ends `stopping` at
// shutdown, because open files would block the unmount of DATA.
func Within(ctx, stopping context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	stop := context.AfterFunc(stopping, cancel)
	return ctx, func() { stop(); cancel() }
}
