package power

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
)

// petInterval is the interval at which the watchdog is fed. Without feeding, the watchdog resets
// the machine after watchdog.Timeout.
const petInterval = 10 * time.Second

// maxServicesSilence is the time for which the service manager may be blocked before feeding stops.
// A service that starts waits for the disk, which can be absent for more than a minute, for example
// while a SAN fails over.
const maxServicesSilence = 5 * time.Minute

// WatchdogDeps has calls into the central parts of machined, and functions that report the state of
// the watchdog. FeedWatchdog stops feeding if one of the calls does not return.
type WatchdogDeps struct {
	Services func() // returns when the service manager has responded
	Reports  func() // returns when the topics and the events have responded, which they do at once
	Event    func(kind, message string)
	Console  func(line string)
}

// FeedWatchdog feeds the watchdog that init armed, until ctx ends. It feeds only while the central
// parts of machined respond. file is the value of watchdog.FileEnv. If init has armed no watchdog,
// it waits for a driver that is loaded later.
func FeedWatchdog(ctx context.Context, file string, d WatchdogDeps) {
	dog, err := watchdog.Inherit(file)
	if err != nil {
		d.Event("failure", err.Error())
		return
	}
	if dog == nil {
		if dog = lateWatchdog(ctx); dog == nil {
			d.Event("state", "this machine has no watchdog")
			return
		}
		d.Event("state", "armed after its driver was loaded late")
	}
	WatchdogFeeder{Every: petInterval, Pet: dog.Pet, Alive: d.alive(ctx), Report: d.report}.Run(ctx)
}

// lateWatchdog waits for up to a minute for a watchdog with a driver that is loaded after init, and
// arms it. It returns nil if there is none. Some watchdogs are devices that the driver of another
// device creates (i2c-i801 creates iTCO_wdt).
func lateWatchdog(ctx context.Context) *watchdog.Watchdog {
	tick := time.NewTicker(petInterval)
	defer tick.Stop()
	for range 6 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if dog, err := watchdog.Arm(watchdog.Device, watchdog.Timeout); err == nil {
			return dog
		}
	}
	return nil
}

// alive returns the function for WatchdogFeeder.Alive. It calls the service manager in a separate
// goroutine, because the call may block for minutes.
func (d WatchdogDeps) alive(ctx context.Context) func(context.Context) error {
	answered := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			d.Services()
			select {
			case answered <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	last := time.Now()
	return func(context.Context) error {
		d.Reports()
		select {
		case <-answered:
			last = time.Now()
		default:
			if mute := time.Since(last); mute > maxServicesSilence {
				return fmt.Errorf("the services have not answered for %v", mute.Round(time.Second))
			}
		}
		return nil
	}
}

func (d WatchdogDeps) report(err error) {
	if err != nil {
		d.Console(err.Error())
	}
}
