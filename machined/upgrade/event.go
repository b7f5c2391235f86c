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
		// The epoch floor is the lowest release epoch that the machine installs. It rises only
		// after performEarly has renamed the boot entry, because a version on trial must not raise
		// it. If the power fails before this line, the next boot raises the floor.
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

// order splits the actions of an event: early actions run before the new record is stored, late
// actions run after it. The last column says what the order guarantees if the power fails between
// the action and the storage of the record:
//
//	action                order  guarantee
//	RestoreConfiguration  early  without the record, the next boot restores it again
//	Rename, at a commit   early  if the record says committed, the entry is committed, too, and
//	                             the boot loader does not start the other version any more
//	any other             late   the record has the reason for the next boot
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

// reaction says how handle continues after an error.
type reaction int

const (
	stop    reaction = iota // perform no further action
	proceed                 // perform the other actions
	revert                  // restore the previous record, unless the action was performed
)

// reactions returns two reactions to errors of an event: withoutRecord is the reaction if the
// record cannot be stored, and failedAction is the reaction if an action fails:
//
//	event               without record  failed action
//	Booted,             proceed         stop     the entries are authoritative; the record only
//	ChecksPassed                                 explains them
//	ChecksFailed        proceed         proceed  reboot even if the entry of the failed version
//	                                             cannot be renamed: the boot loader still counts
//	                                             the tries of this version
//	RollbackRequested   stop            revert   if the entry was not renamed, no rollback has
//	                                             started, and the record must not show a trial
//	any other           stop            stop     the caller gets the error, and nothing is undone
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

// performEarly performs the actions before the record is stored. If RestoreConfiguration fails,
// performEarly only prints the error, because the rollback itself is complete.
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

// performLate performs the actions after the record is stored. failed is the reaction to an action
// that fails, and before is the record before the event.
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

// unperformed reports whether an action is a Rename and the ESP does not contain the new entry, so
// the Rename was certainly not performed.
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

// dropOutdated removes the files that the new phase makes useless. A commit removes the received
// bundle and the log of the trial. The start of an upgrade removes the log of an earlier trial.
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

// saveRecord stores the record if the event has changed it and STATE is mounted.
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

// saveConfiguration saves the configuration for the running version. If the active configuration is
// on trial, saveConfiguration saves the previous configuration instead, because the trial does not
// survive the reboot.
func (c *Controller) saveConfiguration() error {
	text, err := c.deps.Configuration.Confirmed()
	if err != nil || text == nil {
		return err
	}
	return c.deps.records().SaveConfiguration(c.deps.version(), text)
}

// restoreConfiguration restores the configuration that was saved for a version. It also removes the
// staged documents, because an operator staged them for the failed version.
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
