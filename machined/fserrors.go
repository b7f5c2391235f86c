package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/disk"
	api "github.com/orlop-os/orlop/pkg/api"
)

// fsErrorsInterval is the interval at which the kernel's error counts of STATE and DATA are read.
// The kernel sends no event for them.
const fsErrorsInterval = 30 * time.Second

// recordBeforeCheck records the errors in STATE or DATA of an earlier boot: the following check
// clears them.
func (m *machine) recordBeforeCheck(have disk.Have) {
	for _, s := range disk.BeforeCheck(have) {
		m.events.add("disk", "failure", fmt.Sprintf("%s (%s): an earlier boot left a file system with errors (%s); it is checked now", s.Label, s.Device, s.Faults))
		m.disks.Update(func(d diskState) diskState {
			d.Filesystems = append(slices.DeleteFunc(slices.Clone(d.Filesystems), func(o disk.FilesystemErrors) bool { return o.Label == s.Label }), s)
			return d
		})
	}
}

// watchFSErrors reports new errors in STATE or DATA and updates topic "disks".
func (m *machine) watchFSErrors(ctx context.Context) {
	tick := time.NewTicker(fsErrorsInterval)
	defer tick.Stop()
	for {
		if now, err := disk.ReadFilesystemErrors(); err == nil {
			m.updateFSErrors(now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// updateFSErrors reports the new errors.
func (m *machine) updateFSErrors(now []disk.FilesystemErrors) {
	before, _ := m.disks.Get()
	for _, s := range disk.NewErrors(before.Filesystems, now) {
		m.logConsole("storage: " + s.String())
	}
	next := withErrors(before.Filesystems, now)
	if slices.Equal(next, before.Filesystems) {
		return
	}
	m.disks.Update(func(d diskState) diskState { d.Filesystems = next; return d })
}

// withErrors returns the file systems with errors, and the file systems that the check at this boot
// has repaired.
func withErrors(before, now []disk.FilesystemErrors) []disk.FilesystemErrors {
	var out []disk.FilesystemErrors
	for _, s := range now {
		was := slices.IndexFunc(before, func(b disk.FilesystemErrors) bool { return b.Label == s.Label && b.Checked })
		switch {
		case !s.OK():
			out = append(out, s)
		case was >= 0:
			out = append(out, before[was])
		}
	}
	return out
}

// storageCheck returns the check of the file systems with errors; nil if there are none. The
// upgrade checks ignore it: the version is not at fault.
func storageCheck(list []disk.FilesystemErrors) *api.HealthCheck {
	if len(list) == 0 {
		return nil
	}
	check := &api.HealthCheck{Name: "storage", Ok: true, Since: timestamppb.New(time.Time{})}
	var details []string
	for _, s := range list {
		check.Ok = check.Ok && s.OK()
		details = append(details, s.String())
	}
	check.Detail = strings.Join(details, "; ")
	return check
}
