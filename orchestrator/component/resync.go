package component

import (
	"context"
	"time"
)

// ResyncLoop calls pass until ctx is done: at once, after each change, and retryInterval after a
// failed pass. It calls report with the detail or the error of a pass if it differs from the
// previous report. An empty detail is not reported.
func ResyncLoop(ctx context.Context, changed <-chan struct{}, retryInterval time.Duration, pass func(context.Context) (string, error), report func(detail string)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for reported := ""; ; {
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		detail, err := pass(ctx)
		if err != nil {
			detail = err.Error()
			timer.Reset(retryInterval)
		}
		if detail != "" && detail != reported && ctx.Err() == nil {
			reported = detail
			report(detail)
		}
	}
}
