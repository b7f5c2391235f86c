package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// probeDisk examines a foreign disk with a sandboxed process. A failure is reported once: the disk
// is then skipped for a while.
func (m *machine) probeDisk(ctx context.Context, d diskprobe.Device, f *diskprobe.File) (diskprobe.Result, error) {
	a, err := diskprobe.Probe(ctx, d, f, m.startProbe)
	if err != nil && !errors.Is(err, diskprobe.ErrNoMedium) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		m.events.add("disk", "failure", fmt.Sprintf("%s: content cannot be examined: %v; the disk is treated as holding data, and examined again later", d.Path, err))
	}
	return a, err
}

// startProbe runs the process (package diskprobe).
func (m *machine) startProbe(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error) {
	text, err := m.reaper.RunCommand(ctx, supervise.Command{
		Args: []string{paths.Diskprobe}, Env: diskprobe.Environment, Stdin: question, Files: files,
		UID: paths.UserProbe, SeparateStderr: true, MaxOutput: most, Nice: 10, KillFirst: true,
	})
	if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) {
		// its output may contain text of the disk
		return nil, errors.New("its process " + exit.Exit.String())
	}
	return text, err
}

// examinedBeforeMount examines foreign disks until STATE is mounted, because a foreign disk may be
// a clone of the system disk (disk.Plan rejects it). A disk that does not answer within the
// prober's timeout delays the boot no longer. After the mount, no code here waits for foreign
// disks: watchDisks examines them.
func (m *machine) examinedBeforeMount() disk.Examine {
	if _, mounted, err := mount.At(paths.State); err == nil && mounted {
		return nil
	}
	return m.examined(diskprobe.Cached)
}

// examined returns the examination of foreign disks for package disk.
func (m *machine) examined(fresh diskprobe.Freshness) disk.Examine {
	return func(ctx context.Context, devices []diskprobe.Device) []diskprobe.DeviceResult {
		return m.prober.All(ctx, devices, fresh)
	}
}
