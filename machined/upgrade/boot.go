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

// Load loads the record of the last upgrade. If that upgrade has not ended, Load also passes this
// boot to slot.Step. Load runs before the configuration is loaded, because a rollback replaces the
// configuration.
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
		// The boot continues, because the boot loader counts the tries of a version on trial by
		// itself.
		c.deps.Console(err.Error())
		c.deps.Restarter.Go(c.deps.Running, "the loader's entries", c.retryRecordBoot)
	}
}

// ResumeTrial continues a trial if its record is missing, for example because a reset has wiped
// STATE. If the running version is not on trial, ResumeTrial raises the epoch floor to the epoch of
// this version, which also restores a floor that was lost with STATE.
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

// entriesUnread returns substitute entries for slot.Step if the ESP is unreadable. A version on
// trial that cannot read its disk must be watched, too; otherwise the machine would never roll it
// back. The running version is on trial if the boot loader has counted this boot (counted, if known
// is true) or if the record of its upgrade is unfinished. ok is false if the version is not on
// trial.
func entriesUnread(running string, r slot.Record, counted slot.Entry, known bool) (entries []slot.Entry, ok bool) {
	if known && counted.Version == running {
		return []slot.Entry{counted}, true
	}
	return nil, r.To == running && !r.Phase.Done()
}

// espRetryInterval is the delay between two attempts to read or write the ESP.
const espRetryInterval = 10 * time.Second

// retryRecordBoot repeats recordBoot until the ESP is readable. If recordBoot then restores the
// configuration of a rollback, retryRecordBoot activates that configuration.
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

// EpochFloor returns the lowest release epoch that the machine installs. It is the highest epoch of
// a version that was committed on the machine. If the floor is unreadable, EpochFloor returns the
// epoch of the running version.
func (c *Controller) EpochFloor() int {
	floor, err := c.deps.records().EpochFloor()
	if err != nil {
		c.progress.failure(err.Error())
		return c.deps.Release().Epoch
	}
	return floor
}

// ReadEpochFloor returns EpochFloor. Its error is limits.ErrUnknown if the file system STATE does
// not respond in time.
func (c *Controller) ReadEpochFloor(ctx context.Context) (int, error) {
	return limits.Read(ctx, &c.floorReads, "epoch floor", limits.StateTimeout, func(context.Context) (int, error) { return c.EpochFloor(), nil })
}

// raiseFloor raises the epoch floor to the epoch of the running version. The caller has made sure
// that this version is committed.
func (c *Controller) raiseFloor() error {
	if c.deps.storageProblem() != "" {
		return nil
	}
	return c.deps.records().RaiseEpochFloor(c.deps.Release().Epoch)
}
