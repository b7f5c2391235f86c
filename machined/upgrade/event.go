package upgrade

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/orlop-os/orlop/pkg/slot"
)

// handle passes an event to slot.Step, stores the record, and performs the actions.
func (c *Controller) handle(ctx context.Context, e slot.Event) error {
	c.eventMu.Lock()
	defer c.eventMu.Unlock()
	before := c.Record()
	after, actions, err := slot.Step(c.deps.version(), before, e)
	if err != nil {
		return err
	}
	early, late := order(after.Phase, actions)
	if err := c.performEarly(ctx, early); err != nil {
		return err
	}
	if after.Phase == slot.Committed {
		// After the entry: a version on trial must not raise the floor. After a power cut in
		// between, the next boot raises it.
		if err := c.raiseFloor(); err != nil {
			return err
		}
	}
	if after.Phase != before.Phase {
		c.dropOutdated(after.Phase)
	}
	withoutRecord, failedAction := reactions(e)
	if err := c.saveRecord(before, after); err != nil {
		if withoutRecord == stop {
			return err
		}
		c.deps.Console(err.Error())
	}
	c.progress.setRecord(after)
	if after.Phase != before.Phase {
		c.deps.Console(describe(after))
	}
	return c.performLate(ctx, late, failedAction, before)
}

// order returns the actions before and after the new record is stored:
//
//	action                order   so that after a power cut in between
//	RestoreConfiguration  before  the next boot restores the configuration again
//	Rename, at a commit   before  no record says committed while the entry is on trial: the other
//	                              version must not start any more
//	any other             after   the record has the reason for the next boot
func order(after slot.Phase, actions []slot.Action) (early, late []slot.Action) {
	for _, a := range actions {
		if _, restores := a.(slot.RestoreConfiguration); restores || after == slot.Committed {
			early = append(early, a)
		} else {
			late = append(late, a)
		}
	}
	return early, late
}

// reaction is the reaction to an error.
type reaction int

const (
	stop    reaction = iota // perform no further action
	proceed                 // perform the other actions
	revert                  // restore the previous record, unless the action was performed
)

// reactions returns the reaction if the record of an event is not stored, and if an action fails:
//
//	event               without record  failed action
//	Booted,             proceed         stop     the entries are authoritative; the record only
//	ChecksPassed                                 holds the reason
//	ChecksFailed        proceed         proceed  a version that failed its checks is left even if
//	                                             its entry cannot be renamed: the loader continues
//	                                             to count
//	RollbackRequested   stop            revert   if the entry was not renamed, no rollback was
//	                                             started, and no version is on trial
//	any other           stop            stop     no action was performed yet
func reactions(e slot.Event) (withoutRecord, failedAction reaction) {
	switch e.(type) {
	case slot.Booted, slot.ChecksPassed:
		return proceed, stop
	case slot.ChecksFailed:
		return proceed, proceed
	case slot.RollbackRequested:
		return stop, revert
	}
	return stop, stop
}

// performEarly performs the actions before the record is stored. A rollback is complete also
// without its configuration, so that error is only reported.
func (c *Controller) performEarly(ctx context.Context, actions []slot.Action) error {
	for _, a := range actions {
		err := c.perform(ctx, a)
		if _, restores := a.(slot.RestoreConfiguration); restores && err != nil {
			c.deps.Console(err.Error())
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// performLate performs the actions after the record is stored. The record before the event is
// before.
func (c *Controller) performLate(ctx context.Context, actions []slot.Action, failed reaction, before slot.Record) error {
	var all error
	for _, a := range actions {
		err := c.perform(ctx, a)
		switch {
		case err == nil:
		case failed == proceed:
			all = errors.Join(all, err)
		case failed == revert && c.unperformed(a):
			c.progress.setRecord(before)
			return errors.Join(err, c.deps.records().Save(before))
		default:
			return err
		}
	}
	return all
}

// unperformed reports whether an action is a Rename of which the entries show that it was not
// performed.
func (c *Controller) unperformed(a slot.Action) bool {
	mark, is := a.(slot.Rename)
	if !is {
		return false
	}
	entries, err := c.esp.Entries()
	return err == nil && !slices.Contains(entries, mark.To)
}

// perform performs an action.
func (c *Controller) perform(ctx context.Context, a slot.Action) error {
	switch a := a.(type) {
	case slot.Watch:
		c.startTrial(ctx)
		return nil
	case slot.Rename:
		return c.esp.Rename(a.To)
	case slot.RestoreConfiguration:
		return c.restoreConfiguration(a.Version)
	case slot.Reboot:
		return c.deps.Reboot(a.Why)
	}
	return nil
}

// dropOutdated removes the files that a phase makes useless: the log of an earlier trial, and the
// bundle of a committed version.
func (c *Controller) dropOutdated(phase slot.Phase) {
	var err error
	switch phase {
	case slot.Committed:
		err = errors.Join(c.deps.Files.Inbox.Drop(), c.deps.records().DropLog())
	case slot.Writing:
		err = c.deps.records().DropLog()
	}
	if err != nil {
		c.deps.Console(err.Error())
	}
}

// saveRecord stores a changed record; most boots change nothing.
func (c *Controller) saveRecord(before, after slot.Record) error {
	if c.deps.storageProblem() != "" || reflect.DeepEqual(after, before) {
		return nil
	}
	return c.deps.records().Save(after)
}

// describe returns the line for the console about a new phase.
func describe(r slot.Record) string {
	text := fmt.Sprintf("upgrade from %s to %s: %s", r.From, r.To, r.Phase)
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

// saveConfiguration saves the active configuration for the running version. A configuration on
// trial ends with this boot, so the previous configuration is saved instead.
func (c *Controller) saveConfiguration() error {
	text, err := c.deps.Configuration.Confirmed()
	if err != nil || text == nil {
		return err
	}
	return c.deps.records().SaveConfiguration(c.deps.version(), text)
}

// restoreConfiguration restores the configuration with which a version was committed. The staged
// documents belong to the failed version.
func (c *Controller) restoreConfiguration(version string) error {
	if err := c.deps.Configuration.DropStaged(); err != nil {
		return err
	}
	saved, err := c.deps.records().SavedConfiguration(version)
	if err != nil || saved == nil {
		return err
	}
	if err := c.deps.Configuration.Restore(saved); err != nil {
		return fmt.Errorf("upgrade: cannot restore the configuration: %w", err)
	}
	c.progress.event("config", "the configuration is again the one that version "+version+" was good with")
	return nil
}
