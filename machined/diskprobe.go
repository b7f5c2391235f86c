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

// probe has one foreign disk examined by a process that can do nothing else. It says once why that
// failed: the disk rests then.
func (m *machine) probe(ctx context.Context, d diskprobe.Device, f *diskprobe.File) (diskprobe.Result, error) {
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
		UID: paths.UserProbe, OwnNamespaces: true, MaxOutput: most, Nice: 10, KillFirst: true,
	})
	if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) {
		// what it wrote may be the disk's words
		return nil, errors.New("its process " + exit.Exit.String())
	}
	return text, err
}

// examinedBeforeMount examines foreign disks until STATE is mounted, because one of them may be a
// clone of the system disk (disk.Plan refuses it). A disk that does not answer within the prober's
// patience delays the start no longer. After that nothing waits for foreign disks here: followDisks
// has them examined.
func (m *machine) examinedBeforeMount() disk.Examine {
	if _, mounted, err := mount.At(paths.State); err == nil && mounted {
		return nil
	}
	return m.examined(diskprobe.Cached)
}

// examined is how package disk has foreign disks examined.
func (m *machine) examined(fresh diskprobe.Freshness) disk.Examine {
	return func(ctx context.Context, devices []diskprobe.Device) []diskprobe.DeviceResult {
		return m.prober.All(ctx, devices, fresh)
	}
}
