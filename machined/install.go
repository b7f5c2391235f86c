package main

import (
	"context"
	"errors"
	"slices"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/pki"
)

// How a machine that runs from memory is installed:
//
//  1. A configuration arrives over the API (apply) or is on a boot medium (seed.go). A problem with
//     it, or with the disks, is reported, and nothing happens.
//  2. Package install selects the disk and plans the operations; a dry run ends here.
//  3. The operations run in order while the caller watches topic "install".
//  4. The machine reboots from the disk, with its configuration and its key.

func newInstall(m *machine) *install.Manager {
	return install.New(install.Deps{
		Disks:       func(ctx context.Context) ([]install.Disk, error) { return installDisks(ctx, m.disks) },
		Release:     func() buildinfo.Release { return m.system.release },
		Identity:    func() *pki.Leaf { return m.identity.Load() },
		ConfigFile:  m.active.Store().Current(),
		Command:     m.commands.run,
		Run:         m.commands.reaper.Run,
		LoadModules: m.system.kernel.LoadModules,
		Lock:        m.upgrade.Controller.TryLock,
		Reboot:      func(why string) { m.power.Perform(power.Request{To: power.Reboot, Why: why}) },
		Running:     m.power.Running(),
		Event:       func(kind, message string) { m.events.Add("install", kind, message) },
		Console:     m.events.LogConsole,
	})
}

// stepInstall starts the installation that the configuration of a boot medium requests, and reports
// disks with an installed system.
func stepInstall(ctx context.Context, m *machine) error {
	if !m.system.inMemory() {
		return nil
	}
	if err := m.install.ReportInstalled(ctx); err != nil {
		m.events.LogConsole(err.Error())
		return nil
	}
	m.installUnattended(ctx)
	return nil
}

// installUnattended installs by the configuration of a boot medium, or of the image. There is no
// caller, so the console and the topic report an error. It is called again when disks are added or
// removed; a failure after the first write is not retried by itself.
func (m *machine) installUnattended(ctx context.Context) {
	now := m.active.Current()
	if !m.system.inMemory() || now.Config == nil || m.identity.Load() == nil || m.install.Began() {
		return
	}
	w, err := m.install.Plan(ctx, now.Config, true)
	if err == nil {
		err = beginInstall(m.install, w, now.Documents, now.Source)
	}
	if err != nil {
		m.install.Reject(err)
	}
}

// applyInstall is apply on a machine that runs from memory.
func (m *machine) applyInstall(ctx context.Context, before, next *config.Config, documents []byte, dry bool) (outcome, error) {
	w, err := m.install.Plan(ctx, next, false)
	if problems := (config.Problems)(nil); errors.As(err, &problems) {
		return outcome{}, problems
	}
	if err != nil {
		return outcome{}, transition.Refuse(err)
	}
	out := outcome{install: w.Disk.Path}
	out.add("config", config.Changes(before, next))
	out.add("install", install.Print(w))
	if dry {
		return out, nil
	}
	return out, beginInstall(m.install, w, documents, callerid.FromContext(ctx).String())
}

// beginInstall starts an installation, or rejects its configuration.
func beginInstall(manager *install.Manager, w install.Want, documents []byte, by string) error {
	if err := manager.Begin(w, documents, by); err != nil {
		return transition.Refuse(err)
	}
	return nil
}

// installDisks reads the disks for package install.
func installDisks(ctx context.Context, disks *disk.Controller) ([]install.Disk, error) {
	have, err := disk.Read(ctx, disks.Examine(diskprobe.Fresh))
	if err != nil {
		return nil, err
	}
	media, err := seed.List(ctx, disks.Prober())
	if err != nil {
		return nil, err
	}
	var out []install.Disk
	for _, d := range have.Disks {
		out = append(out, installDisk(d, media))
	}
	return out, nil
}

// installDisk converts a disk to the form of package install.
func installDisk(d disk.Disk, media []seed.Device) install.Disk {
	out := install.Disk{
		Path: d.Path, Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus, Transport: d.Transport, Size: d.Size, SectorSize: d.SectorSize,
		Rotational: d.Rotational, ReadOnly: d.ReadOnly, Table: d.Table.Kind,
	}
	if d.Boot {
		out.Medium = "the system runs from it"
	} else if i := slices.IndexFunc(media, func(s seed.Device) bool { return s.Disk == d.Path }); i >= 0 {
		out.Medium = "it is the medium " + media[i].Label
	}
	for _, p := range d.Partitions {
		out.Bootable = out.Bootable || p.Label == disklayout.ESP && p.Loader
		out.Partitions = append(out.Partitions, install.Partition{Number: p.Number, Label: p.Label, Type: p.Type, UUID: p.UUID, Size: p.Size, Content: p.Content.String()})
	}
	return out
}
