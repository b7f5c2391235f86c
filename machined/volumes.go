package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/diskmatch"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/paths"
)

// newVolumes makes the controller of the volumes on other disks. Sandboxed processes examine these
// disks (machined/disk).
func newVolumes(m *machine) *volumes.Controller {
	return volumes.New(volumes.Deps{
		Disks: func(ctx context.Context, fresh bool) ([]volumes.Disk, error) {
			have, err := disk.Read(ctx, m.domains.disks.Examine(diskprobe.Freshness(fresh)))
			var out []volumes.Disk
			for _, d := range have.Disks {
				out = append(out, volumeDisk(d))
			}
			return out, err
		},
		Changes: m.domains.disks.State().View().Changes(),
		Command: m.processes.commands.run,
		Run:     m.processes.commands.reaper.Run,
		Busy:    func() bool { return slices.ContainsFunc(m.processes.services.Services(), nodeplan.OfNode) },
		Records: paths.Volumes,
		Event:   m.reports.events.From("volumes"),
	})
}

// newWear makes the controller of the wear of the disks.
func newWear(m *machine) *wear.Controller {
	return wear.New(wear.Deps{
		Disks: cell.Map(m.domains.disks.State(), func(s disk.State) (out []wear.Target) {
			for _, d := range s.Disks {
				out = append(out, wear.Target{Path: d.Path, Model: d.Model, Serial: d.Serial, WWID: d.WWID, Transport: d.Transport})
			}
			return out
		}),
		Read:  wear.Read,
		File:  func() string { return storedIn(m, paths.Wear) },
		Now:   time.Now,
		Event: m.reports.events.From("wear"),
	})
}

// storedIn returns a file on STATE; empty if STATE is not mounted.
func storedIn(m *machine, file string) string {
	if m.system.inMemory() || m.domains.disks.StorageProblem() != "" {
		return ""
	}
	return file
}

// volumeDisk converts a disk to the form of package volumes.
func volumeDisk(d disk.Disk) volumes.Disk {
	out := volumes.Disk{
		Disk: diskmatch.Disk{
			Path: d.Path, Size: int64(d.Size), SectorSize: int64(d.SectorSize), Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus,
			Transport: d.Transport, Rotational: d.Rotational, ReadOnly: d.ReadOnly,
		},
		Boot: d.Boot, Table: d.Table.Kind, First: d.First, End: d.End, Alignment: d.Alignment,
	}
	for _, p := range d.Partitions {
		out.Partitions = append(out.Partitions, volumes.Partition{
			Path: p.Path, Label: p.Label, UUID: p.UUID, Start: p.Start, Size: p.Size,
			Content: volumes.Content{Kind: p.Content.Kind, UUID: p.Content.UUID, Size: p.Content.Size},
		})
	}
	return out
}

// wipeStored erases a disk or a volume. Without STATE, it is unknown which partitions are volumes.
func wipeStored(ctx context.Context, m *machine, wipe func(context.Context, string) (string, error), name string) (string, error) {
	if m.system.inMemory() {
		return "", errors.New("the system runs from memory: the installation erases the disk that Machine.spec.install.wipe names")
	}
	if why := m.domains.disks.StorageProblem(); why != "" {
		return "", errors.New("STATE is not mounted, so the volumes of the machine are unknown: " + why)
	}
	return wipe(ctx, name)
}

// wipe erases the partitions with these labels, for a reset. The parts of DATA on other disks come
// first: an interrupted reset leaves a machine that can be reset again.
func wipe(ctx context.Context, m *machine, labels []string) error {
	if slices.Contains(labels, layout.Data) {
		say := func(line string) { m.reports.events.LogConsole("reset: " + line) }
		if err := m.domains.volumes.WipeParts(slices.Contains(labels, layout.State), say); err != nil {
			m.reports.events.LogConsole("reset: " + err.Error())
		}
	}
	return m.domains.disks.Wipe(ctx, labels)
}
