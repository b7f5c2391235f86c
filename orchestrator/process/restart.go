package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// restarts is the delay before a component restarts.
var restarts = backoff.Backoff{Min: time.Second, Max: time.Minute}

// steady is the duration from which a run counts as a success: the next delay is the first again.
const steady = 10 * time.Minute

// RestartLoop runs a component until ctx is done and restarts it after a delay whenever it ends;
// the other components continue. report receives the reason of each end. The component must leave
// no state in this process that affects its next run.
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

// countEnds returns the number of ends in a row after a run of duration ran.
func countEnds(before int, ran time.Duration) int {
	if ran >= steady {
		return 1
	}
	return before + 1
}
