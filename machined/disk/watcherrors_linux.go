package disk

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// errorsInterval is the interval at which the kernel's error counts of STATE and DATA and the state
// of the other mounts are read, because the kernel sends no event for them. espInterval is the
// interval of the reads of the ESP, which is mounted only for a read.
const (
	errorsInterval = 30 * time.Second
	espInterval    = time.Hour
)

// recordBeforeCheck records the errors that an earlier boot left in STATE or DATA, because the
// check that follows clears them.
func (c *Controller) recordBeforeCheck(have Have) {
	for _, s := range beforeCheck(have) {
		c.recordErrors(s)
	}
}

func (c *Controller) recordErrors(s FilesystemErrors) {
	c.deps.Event("failure", fmt.Sprintf("%s (%s): an earlier boot left a file system with errors (%s); it is checked now", s.Label, s.Device, s.Faults))
	c.state.Update(func(d State) State {
		d.Filesystems = append(slices.DeleteFunc(slices.Clone(d.Filesystems), func(o FilesystemErrors) bool { return o.Label == s.Label }), s)
		return d
	})
}

// WatchErrors reports new errors in the file systems of the system and updates topic "disks".
func (c *Controller) WatchErrors(ctx context.Context) {
	tick, checks := time.NewTicker(errorsInterval), time.NewTicker(espInterval)
	defer tick.Stop()
	defer checks.Stop()
	_ = c.deps.ESP.Check() // Fault returns the error
	for {
		if now, err := c.readErrors(); err == nil {
			c.updateErrors(now)
		}
		select {
		case <-tick.C:
			if c.deps.ESP.Fault() != "" {
				_ = c.deps.ESP.Check() // the fault may be over
			}
		case <-checks.C:
			_ = c.deps.ESP.Check()
		case <-ctx.Done():
			return
		}
	}
}

// readErrors reads the error state of the file systems of the system: STATE and DATA, the ESP, and
// the mounts that are not on a disk.
func (c *Controller) readErrors() ([]FilesystemErrors, error) {
	all, err := readFilesystemErrors()
	if err != nil {
		return nil, err
	}
	others, err := readMountErrors(c.deps.Mounts())
	if err != nil {
		return nil, err
	}
	return append(append(all, espErrors(c.deps.ESP.Path(), c.deps.ESP.Fault())), others...), nil
}

// updateErrors reports the new errors.
func (c *Controller) updateErrors(now []FilesystemErrors) {
	before, _ := c.state.Get()
	for _, s := range newErrors(before.Filesystems, now) {
		c.deps.Console("storage: " + s.String())
	}
	next := withErrors(before.Filesystems, now)
	if slices.Equal(next, before.Filesystems) {
		return
	}
	c.state.Update(func(d State) State { d.Filesystems = next; return d })
}

// withErrors returns the file systems with errors, and the file systems that the check at this boot
// has repaired.
func withErrors(before, now []FilesystemErrors) []FilesystemErrors {
	var out []FilesystemErrors
	for _, s := range now {
		was := slices.IndexFunc(before, func(b FilesystemErrors) bool { return b.Label == s.Label && b.Checked })
		switch {
		case !s.OK():
			out = append(out, s)
		case was >= 0:
			out = append(out, before[was])
		}
	}
	return out
}
