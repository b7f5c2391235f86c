package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// restarts is the back-off before a component restarts.
var restarts = backoff.Backoff{Min: time.Second, Max: time.Minute}

// steady is the duration of a run that counts as a success. After such a run, the back-off begins
// again with its first delay.
const steady = 10 * time.Minute

// RestartLoop runs a component until ctx is done. Whenever the component ends, RestartLoop calls
// report with the reason and restarts the component after a delay. The other components continue. A
// run must leave no state in this process that affects the next run. RestartLoop returns the error
// of the run that ctx has ended.
func RestartLoop(ctx context.Context, run func(context.Context) error, report func(why string)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ends := 0; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return err
		}
		if err == nil {
			err = errors.New("without an error")
		}
		ends = countEnds(ends, time.Since(began))
		pause := restarts.Delay(ends)
		report(fmt.Sprintf("ended: %v; it restarts in %s", err, pause))
		timer.Reset(pause)
	}
}

// countEnds returns the number of ends in succession. before is the number before the last run, and
// ran is the duration of this run.
func countEnds(before int, ran time.Duration) int {
	if ran >= steady {
		return 1
	}
	return before + 1
}
