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

// savedLines is the number of log lines that are saved of a failed boot.
const savedLines = 200

// probeInterval is the delay after a failed upgrade probe.
const probeInterval = 2 * time.Second

// Health is the health of the machine during a trial.
type Health struct {
	// Config is the active configuration; nil if there is none.
	Config *config.Config
	// Failed is the first failed check; empty if all passed.
	Failed string
}

// HealthWatcher watches the health of the machine. A single goroutine uses it.
type HealthWatcher interface {
	// Health returns the present health.
	Health() Health
	// Panic returns the reason for which a version that panicked fails; empty if it has not
	// panicked.
	Panic() string
	// Wait waits until Health or Panic may return another result than they did last, or ctx ends,
	// with its error.
	Wait(ctx context.Context) error
}

// Event is an event of the machine.
type Event struct {
	Time         time.Time
	Source, Text string
}

// startTrial starts the watch over the running version.
func (c *Controller) startTrial(ctx context.Context) {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.deps.Restarter.Go(watching, "log of a trial", c.saveLog)
	go func() {
		defer stop()
		c.deps.Restarter.Run(watching, "trial", c.watchTrial)
	}()
}

// watchTrial waits until all checks of this version have passed, or the deadline has passed, and
// ends the trial.
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
		// The loader would start the other version at the next boot: a rollback now restores its
		// configuration too.
		if passed && errors.Is(err, esp.ErrNoEntry) {
			passed, err = false, c.handle(ctx, slot.ChecksFailed{Reason: err.Error(), Log: c.lastLines()})
		}
		if err == nil {
			return
		}
		c.deps.Console(err.Error()) // the loader continues to count
		if !passed {
			return
		}
		select { // the checks passed, but the entry is not renamed yet
		case <-time.After(espRetryInterval):
		case <-ctx.Done():
			return
		}
	}
}

// awaitResult waits until all checks of this version have passed, or have failed: at the deadline,
// or by a panic.
func (c *Controller) awaitResult(ctx context.Context, watch HealthWatcher) slot.Event {
	for {
		health := watch.Health()
		failed, retry := health.Failed, time.Duration(0)
		if failed == "" {
			if err := c.probes.run(ctx, health.Config, c.Record().NetworkReached); err != nil {
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
		if deadline := deadline(health.Config); !c.awaitChange(ctx, watch, deadline, retry) {
			return slot.ChecksFailed{Reason: fmt.Sprintf("version %s did not pass its checks within %v: %s", c.deps.version(), deadline, failed), Log: c.lastLines()}
		}
	}
}

// deadline returns the time from the start of init to the end of a trial.
func deadline(active *config.Config) time.Duration {
	if active == nil {
		return config.DefaultUpgradeDeadline
	}
	return time.Duration(active.Machine.Spec.Upgrade.Deadline)
}

// awaitChange waits until the health has changed, or a probe is due (retry; 0: none). It returns
// false at the deadline of the trial.
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

// saveLog saves the end of the log of a version on trial, in case it ends without a message: after
// the rollback the old version shows it.
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

// lastLines returns the end of the logs of this boot, a third each of the events, the services'
// logs and the kernel log.
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
