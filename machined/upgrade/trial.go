package upgrade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// savedLines is the number of log lines of a failed boot that the package saves.
const savedLines = 200

// probeInterval is the delay after a failed upgrade probe before all probes run again.
const probeInterval = 2 * time.Second

// HealthWatcher watches the health of the machine. A single goroutine uses it.
type HealthWatcher interface {
	// Failed returns the active configuration (nil for none) and the name of the first failed
	// check. failed is "" if all checks pass.
	Failed() (active *config.Config, failed string)
	// Panic returns the message of a panic of this version. It returns "" if the version has not
	// panicked.
	Panic() string
	// Wait returns nil when the results of Failed or Panic may have changed since their last calls.
	// It returns the error of ctx when ctx ends.
	Wait(ctx context.Context) error
}

// Event is an event of the machine.
type Event struct {
	Time         time.Time
	Source, Text string
}

// startTrial starts the goroutines that watch the running version and save its log. They do not end
// with ctx.
func (c *Controller) startTrial(ctx context.Context) {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.deps.Restarter.Go(watching, "log of a trial", c.saveLog)
	go func() {
		defer stop()
		c.deps.Restarter.Run(watching, "trial", c.watchTrial)
	}()
}

// watchTrial waits until all checks of this version have passed or the trial has failed. Then it
// commits the version or rolls back.
func (c *Controller) watchTrial(ctx context.Context) {
	for watch := c.deps.Trial.Watch(); ; {
		e := c.awaitResult(ctx, watch)
		success, passed := e.(slot.ChecksPassed)
		var err error
		if passed {
			err = c.commit(ctx, success)
		} else {
			err = c.handle(ctx, e)
		}
		// The ESP has no entry of this version, so the boot loader would start the other version at
		// the next boot. A rollback now also restores the configuration of the other version.
		if passed && errors.Is(err, esp.ErrNoEntry) {
			passed, err = false, c.handle(ctx, slot.ChecksFailed{Reason: err.Error(), Log: c.lastLines()})
		}
		if err == nil {
			return
		}
		c.deps.Console(err.Error()) // the boot loader still counts the tries
		if !passed {
			return
		}
		select { // the checks passed, but the ESP cannot be written at present
		case <-time.After(espRetryInterval):
		case <-ctx.Done():
			return
		}
	}
}

// awaitResult returns ChecksPassed once all checks of this version pass. It returns ChecksFailed at
// the deadline, or as soon as the version panics.
func (c *Controller) awaitResult(ctx context.Context, watch HealthWatcher) slot.Event {
	for {
		active, failed := watch.Failed()
		retry := time.Duration(0)
		if failed == "" {
			if err := c.probes.run(ctx, active, c.Record().NetworkReached); err != nil {
				failed, retry = err.Error(), probeInterval
			}
		}
		c.progress.state.Update(func(s State) State { s.WaitingFor = failed; return s })
		if why := watch.Panic(); why != "" {
			return slot.ChecksFailed{Reason: why, Log: c.lastLines()}
		}
		if failed == "" {
			return slot.ChecksPassed{At: time.Now()}
		}
		if deadline := deadline(active); !c.awaitChange(ctx, watch, deadline, retry) {
			return slot.ChecksFailed{Reason: fmt.Sprintf("version %s did not pass its checks within %v: %s", c.deps.version(), deadline, failed), Log: c.lastLines()}
		}
	}
}

// deadline returns the longest duration of a trial. The trial counts from the start of init.
func deadline(active *config.Config) time.Duration {
	if active == nil {
		return config.DefaultUpgradeDeadline
	}
	return time.Duration(active.Machine.Spec.Upgrade.Deadline)
}

// awaitChange returns true when the health may have changed, or when retry has passed (0: no
// retry). It returns false when the trial has reached its deadline.
func (c *Controller) awaitChange(ctx context.Context, watch HealthWatcher, deadline, retry time.Duration) bool {
	trial, cancel := context.WithDeadline(ctx, c.deps.Trial.Started.Add(deadline))
	defer cancel()
	due := trial
	if retry > 0 {
		due, cancel = context.WithTimeout(trial, retry)
		defer cancel()
	}
	return watch.Wait(due) == nil || trial.Err() == nil
}

// saveLogInterval is the interval at which a version on trial saves the end of its log.
const saveLogInterval = 5 * time.Second

// saveLog saves the end of the log of a version on trial every saveLogInterval. If the version
// crashes without a message, the old version shows this log after the rollback.
func (c *Controller) saveLog(ctx context.Context) {
	tick := time.NewTicker(saveLogInterval)
	defer tick.Stop()
	for {
		if err := c.deps.records().SaveLog(c.lastLines()); err != nil {
			c.deps.Console(err.Error())
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lastLines returns the end of the logs of this boot: one third events, one third logs of services,
// and one third kernel log.
func (c *Controller) lastLines() []string {
	const third = savedLines / 3
	var lines []string
	add := func(at time.Time, source, text string) {
		lines = append(lines, fmt.Sprintf("%s %s: %s", at.UTC().Format(time.RFC3339), source, text))
	}
	d := c.deps.Trial
	events := d.Events()
	for _, e := range events[max(0, len(events)-third):] {
		add(e.Time, e.Source, e.Text)
	}
	all, _ := d.Services.Status().Get()
	for _, s := range all {
		ring, err := d.Services.Log(s.Name)
		if err != nil {
			continue
		}
		for _, l := range ring.Tail(third / len(all)) {
			add(l.Time, "service/"+s.Name, l.Text)
		}
	}
	kernel, err := kmsg.Tail(third)
	started, err2 := d.KernelStart()
	if err := errors.Join(err, err2); err != nil {
		return append(lines, err.Error())
	}
	for _, r := range kernel {
		add(started.Add(r.At), "kernel", r.Text)
	}
	return lines
}
