package power

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WatchdogFeeder feeds a watchdog while machined responds.
type WatchdogFeeder struct {
	Every time.Duration // interval; at most a quarter of the watchdog's timeout
	Pet   func() error  // feeds the watchdog (pkg/kernel/watchdog)
	// Alive acquires the locks and passes through the loops of machined, and then returns. If PID 1
	// hangs, Alive does not return, and the watchdog resets the machine. Alive has to return within
	// Every, and must not depend on services, disks or the network.
	Alive func(context.Context) error
	// Report receives an error when the feeding stops, and nil when the feeding resumes. It must
	// not block.
	Report func(err error)
}

// Run feeds the watchdog until ctx ends. The watchdog stays armed after that.
func (f WatchdogFeeder) Run(ctx context.Context) {
	tick := time.NewTicker(f.Every)
	defer tick.Stop()
	answers := make(chan error, 1)
	asked, well := false, true
	for {
		if !asked { // No second call starts while a call hangs.
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
