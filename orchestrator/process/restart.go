package process

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The delay before a component restarts, the first and the longest. A run of at least steady counts
// as a success, and the next delay is minBackoff again.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
	steady     = 10 * time.Minute
)

// RestartLoop runs a component until ctx is done and restarts it after a delay whenever it ends;
// the other components continue. report receives the reason of each end. The component must leave
// no state in this process that affects its next run.
func RestartLoop(ctx context.Context, run func(context.Context) error, report func(why string)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := time.Duration(0); ; {
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
		pause = backoff(pause, time.Since(began))
		report(fmt.Sprintf("ended: %v; it restarts in %s", err, pause))
		timer.Reset(pause)
	}
}

// backoff returns the delay after a run of duration ran that followed the delay last.
func backoff(last, ran time.Duration) time.Duration {
	if last == 0 || ran >= steady {
		return minBackoff
	}
	return min(2*last, maxBackoff)
}
