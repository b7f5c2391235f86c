package power

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
)

// petInterval is the interval at which the watchdog is fed; the watchdog resets the machine after
// watchdog.Timeout.
const petInterval = 10 * time.Second

// maxServicesSilence is the time for which the service manager may not answer while the watchdog is
// fed. A service that starts waits for the disk, which can be absent for more than a minute, for
// example when a SAN fails over.
const maxServicesSilence = 5 * time.Minute

// WatchdogDeps are the central parts of machined that must answer while the watchdog is fed, and
// the reports about it.
type WatchdogDeps struct {
	Services func() // passes through the service manager
	Reports  func() // passes through the topics and the events, which must answer at once
	Event    func(kind, message string)
	Console  func(line string)
}

// FeedWatchdog feeds the watchdog that init armed while the central parts of machined answer, until
// the context ends. file is the value of watchdog.FileEnv.
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

// lateWatchdog arms a watchdog if its driver is loaded after init. Some watchdogs are devices that
// the driver of another device creates (i2c-i801 creates iTCO_wdt).
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

// alive returns WatchdogFeeder.Alive. It asks the service manager from a goroutine of its own,
// because the answer may take long.
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
