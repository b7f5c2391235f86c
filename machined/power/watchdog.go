package power

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WatchdogFeeder feeds a watchdog while machined is alive.
type WatchdogFeeder struct {
	Every time.Duration // interval; at most a quarter of the watchdog's timeout
	Pet   func() error  // feeds the watchdog (pkg/kernel/watchdog)
	// Alive passes through machined's own loops and locks and then returns: a machine with a
	// hanging PID 1 must not keep running. It must return within Every. It must not depend on
	// services, disks or the network.
	Alive func(context.Context) error
	// Report receives an error when the feeding stops, and nil when it resumes. It must not block.
	Report func(err error)
}

// Run feeds the watchdog until the context ends. It leaves the watchdog armed.
func (f WatchdogFeeder) Run(ctx context.Context) {
	tick := time.NewTicker(f.Every)
	defer tick.Stop()
	answers := make(chan error, 1)
	asked, well := false, true
	for {
		if !asked { // a call that hangs is not repeated
			asked = true
			go func() {
				ctx, cancel := context.WithTimeout(ctx, f.Every)
				defer cancel()
				answers <- f.Alive(ctx)
			}()
		}
		err := errors.New("machined does not answer")
		select {
		case answer := <-answers:
			asked, err = false, answer
			if err == nil {
				err = f.Pet()
			}
			if !f.wait(ctx, tick) {
				return
			}
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if (err == nil) != well {
			well = err == nil
			if err != nil {
				err = fmt.Errorf("watchdog: not fed: %w", err)
			}
			f.Report(err)
		}
	}
}

func (f WatchdogFeeder) wait(ctx context.Context, tick *time.Ticker) bool {
	select {
	case <-tick.C:
		return true
	case <-ctx.Done():
		return false
	}
}
