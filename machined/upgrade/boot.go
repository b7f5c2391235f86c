package upgrade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// Load loads the record of the last upgrade. Only if that has not ended, it reads the ESP, before
// the configuration is loaded, which a rollback replaces.
func (c *Controller) Load(ctx context.Context) {
	if c.deps.storageProblem() != "" {
		return
	}
	r, err := c.deps.records().Load()
	if err != nil {
		c.deps.Console(err.Error())
	}
	c.progress.state.Set(State{Record: r})
	if r.Phase.Done() {
		return
	}
	if err := c.recordBoot(ctx); err != nil {
		// the entries decide the next boot even if they are unreadable here
		c.deps.Console(err.Error())
		c.deps.Restarter.Go(c.deps.Running, "the loader's entries", c.retryRecordBoot)
	}
}

// ResumeTrial continues a trial without a record: a reset may have wiped STATE meanwhile. A version
// that is not on trial raises the epoch floor, also if the floor was lost with STATE.
func (c *Controller) ResumeTrial(ctx context.Context) {
	if !c.Record().Phase.Done() {
		return // Load has handled it
	}
	err := c.recordBoot(ctx)
	if err == nil && c.Record().Phase.Done() {
		err = c.raiseFloor()
	}
	release := c.deps.Release()
	if floor := c.EpochFloor(); release.Epoch < floor {
		c.deps.Console(fmt.Sprintf("version %s has epoch %d, and one with epoch %d was committed on this machine; upgrade to a version with at least that epoch", release.Version, release.Epoch, floor))
	}
	if err != nil && (c.deps.Disk.RunningSlot != "" || !errors.Is(err, ErrNoSlots)) {
		c.progress.failure(err.Error())
		c.deps.Restarter.Go(c.deps.Running, "the loader's entries", c.retryRecordBoot)
	}
}

// recordBoot passes the boot of this version to slot.Step.
func (c *Controller) recordBoot(ctx context.Context) error {
	entries, err := c.esp.Entries()
	if err != nil {
		counted, known := esp.CurrentTrial()
		var ok bool
		if entries, ok = entriesUnread(c.deps.version(), c.Record(), counted, known); !ok {
			return err
		}
		c.deps.Console(err.Error())
	}
	return c.handle(ctx, slot.Booted{Entries: entries, At: time.Now(), Log: c.deps.records().SavedLog()})
}

// entriesUnread returns substitute entries if the ESP is unreadable: the trial is watched all the
// same, or a version that cannot read its disk would never be rolled back. The loader's counter
// decides (counted, if known), else the unfinished record. Otherwise ok is false.
func entriesUnread(running string, r slot.Record, counted slot.Entry, known bool) (entries []slot.Entry, ok bool) {
	if known && counted.Version == running {
		return []slot.Entry{counted}, true
	}
	return nil, r.To == running && !r.Phase.Done()
}

// espRetryInterval is the delay before the ESP is read again after an error.
const espRetryInterval = 10 * time.Second

// retryRecordBoot repeats recordBoot until the ESP is readable: after a rollback the machine gets
// its configuration back.
func (c *Controller) retryRecordBoot(ctx context.Context) {
	tick := time.NewTicker(espRetryInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		before := c.Record()
		if err := c.recordBoot(ctx); err != nil {
			continue
		}
		if c.Record().Phase == slot.RolledBack && before.Phase != slot.RolledBack {
			c.deps.Configuration.Reload()
		}
		return
	}
}

// EpochFloor returns the lowest epoch that an operator can install: the highest epoch of a
// committed version.
func (c *Controller) EpochFloor() int {
	floor, err := c.deps.records().EpochFloor()
	if err != nil {
		c.progress.failure(err.Error())
		return c.deps.Release().Epoch
	}
	return floor
}

// ReadEpochFloor returns EpochFloor. The error is limits.ErrUnknown if STATE does not answer.
func (c *Controller) ReadEpochFloor(ctx context.Context) (int, error) {
	return limits.Read(ctx, &c.floorReads, "epoch floor", limits.StateTimeout, func(context.Context) (int, error) { return c.EpochFloor(), nil })
}

// raiseFloor raises the epoch floor to the running version, which is committed.
func (c *Controller) raiseFloor() error {
	if c.deps.storageProblem() != "" {
		return nil
	}
	return c.deps.records().RaiseEpochFloor(c.deps.Release().Epoch)
}
