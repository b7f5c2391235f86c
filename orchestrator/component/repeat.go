package component

import (
	"context"
	"time"
)

// ResyncLoop makes one pass after the other until ctx is done: the first at once, each further one when
// something has changed, or so long after a pass that failed. tell hears what a pass, or its error,
// says of how things are, when that is something else than before; a pass that says nothing has
// nothing new to say.
func ResyncLoop(ctx context.Context, changed <-chan struct{}, again time.Duration, pass func(context.Context) (string, error), tell func(detail string)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for told := ""; ; {
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		detail, err := pass(ctx)
		if err != nil {
			detail = err.Error()
			timer.Reset(again)
		}
		if detail != "" && detail != told && ctx.Err() == nil {
			told = detail
			tell(detail)
		}
	}
}
