package process

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The pause before a component is started again: the first one, and the longest. A component that
// ran for steady is taken for one that works, and its next pause is the first one again.
const (
	firstPause   = time.Second
	longestPause = time.Minute
	steady       = 10 * time.Minute
)

// RestartLoop runs a component until ctx is done, and starts it again after a pause whenever it ends: its
// neighbours go on. tell hears why it has ended. The component must keep nothing in this process
// that a second run meets.
func RestartLoop(ctx context.Context, run func(context.Context) error, tell func(why string)) error {
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
			err = errors.New("without a reason")
		}
		pause = pauseAfter(pause, time.Since(began))
		tell(fmt.Sprintf("ended: %v; it is started again in %s", err, pause))
		timer.Reset(pause)
	}
}

// pauseAfter is the pause after a run that took ran and had the pause last before it.
func pauseAfter(last, ran time.Duration) time.Duration {
	if last == 0 || ran >= steady {
		return firstPause
	}
	return min(2*last, longestPause)
}
