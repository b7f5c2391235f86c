package main

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/orlop-os/orlop/apid"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How a machine that runs from memory is installed:
//
//  1. A configuration arrives over the API (applier) or is on a boot medium (activeconfig). A
//     problem with it, or with the disks, is reported, and nothing happens.
//  2. Package install selects the disk and plans the operations; a dry run ends here.
//  3. The operations run in order while the caller watches topic "install".
//  4. The machine reboots from the disk, with its configuration and its key.

func newInstall(m *machine) *install.Manager {
	return install.New(install.Deps{
		Disks:       func(ctx context.Context) ([]install.Disk, error) { return installDisks(ctx, m.domains.disks) },
		Release:     func() buildinfo.Release { return m.system.release },
		Identity:    func() *pki.Leaf { return m.identity.Load() },
		ConfigFile:  m.config.active.Store().Current(),
		Command:     m.processes.commands.run,
		Run:         m.processes.commands.reaper.Run,
		LoadModules: m.system.kernel.LoadModules,
		Lock:        m.upgrade.Controller.TryLock,
		Reboot:      func(why string) { m.power.Perform(power.Request{To: power.Reboot, Why: why}) },
		Running:     m.power.Running(),
		Event:       m.reports.events.From("install"),
		Console:     m.reports.events.LogConsole,
	})
}

func newUpgrade(m *machine) *upgrade.Upgrade {
	return upgrade.New(upgrade.Deps{
		Release: func() buildinfo.Release { return m.system.release },
		Disk:    upgradeDisk(m),
		Files: upgrade.Files{
			Records:        upgrade.Store{Dir: paths.Upgrade},
			Inbox:          upgrade.Inbox{Dir: paths.Bundle, Free: upgrade.FreeSpace, StallTimeout: transfer.StallTimeout},
			ReleaseKeys:    paths.ReleaseKeys,
			APICertificate: filepath.Join(paths.ApidDir, apid.ServerCertFile),
			EtcdSnapshots:  paths.EtcdSnapshots,
			SBOM:           paths.SBOM, SystemStatement: paths.SystemStatement,
		},
		Configuration: upgrade.Configuration{
			Confirmed:  m.config.active.Store().Confirmed,
			DropStaged: m.config.active.Store().DropStaged,
			Restore:    m.config.active.Restore,
			Reload: func() {
				m.config.active.Lock()
				defer m.config.active.Unlock()
				_, _ = m.config.active.Reload() // the configuration topic reports the problem
			},
			CheckUpgrade:  m.domains.extensions.CheckUpgrade,
			CheckRollback: func(documents []byte) error { return checkSavedExtensions(m, documents) },
		},
		Trial: upgrade.Trial{
			Started: m.reports.progress.Started(),
			Watch:   func() upgrade.HealthWatcher { return watchHealth(m) },
			Events: func() (out []upgrade.Event) {
				for _, e := range m.reports.events.After(0) {
					out = append(out, upgrade.Event{Time: e.Time, Source: e.Source, Text: e.Message})
				}
				return out
			},
			Services:    m.processes.services,
			KernelStart: m.system.kernelStarted,
		},
		Network: upgrade.Network{
			Addresses: func(c *config.Config) []netip.Addr {
				state, _ := m.domains.network.State.Get()
				return nodeplan.Addresses(c, state)
			},
			Gateways: func() []func(context.Context) error {
				state, _ := m.domains.network.State.Get()
				return gatewayProbes(state)
			},
		},
		Node: upgrade.Node{
			Config:  func() *config.Config { now := m.config.active.Current(); return now.Config },
			Egress:  func() egress.Config { return egressOf(m) },
			Command: m.processes.commands.run,
			Drain:   upgradeDrain{m},
		},
		Disruption:   m.guard,
		PeerEndpoint: m.members.Peers.Endpoint,
		Serve:        machinedapi.Serve(m.power.Running().Done()),
		Reboot:       func(why string) error { return m.power.Shutdown(power.Request{To: power.Reboot, Why: why}) },
		Running:      m.power.Running(),
		Restarter:    m.reports.panics.Restarter(),
		Event:        m.reports.events.From("upgrade"),
		Console:      m.reports.events.LogConsole,
	})
}

// upgradeDisk returns the system disk for upgrades.
func upgradeDisk(m *machine) upgrade.Disk {
	return upgrade.Disk{
		RunningSlot: m.system.slot,
		Slots: func() (upgrade.Slot, error) {
			disks, _ := m.domains.disks.State().Get()
			return findSlots(disks.Disks, m.system.slot)
		},
		LoadModules:    m.system.kernel.LoadModules,
		StorageProblem: m.domains.disks.StorageProblem,
		Firmware:       newFirmware(m),
	}
}

// findSlots returns the partitions of the two slots, of which a system runs in slot running.
func findSlots(disks []disk.Disk, running string) (upgrade.Slot, error) {
	label := layout.RootA
	if running == "A" {
		label = layout.RootB
	}
	for _, d := range disks {
		p := upgrade.Slot{Disk: d.Path, Label: label}
		for _, part := range d.Partitions {
			switch part.Label {
			case layout.ESP:
				p.ESP = part.Path
			case label:
				p.Root, p.Number, p.Size, p.UUID = part.Path, part.Number, int64(part.Size), part.UUID
			case layout.RootA, layout.RootB:
				p.Running = part.Path
			}
		}
		if d.Boot && p.ESP != "" && p.Root != "" {
			return p, nil
		}
	}
	return upgrade.Slot{}, upgrade.ErrNoSlots
}

// gatewayProbes returns a probe for each gateway.
func gatewayProbes(state network.State) []func(context.Context) error {
	var out []func(context.Context) error
	for _, r := range state.Gateways() {
		out = append(out, func(ctx context.Context) error { return network.AwaitGateway(ctx, r) })
	}
	return out
}

// beginInstallation is apply on a machine that runs from memory.
func (a *applier) beginInstallation(ctx context.Context, before, next *config.Config, documents []byte, dry bool) (outcome, error) {
	w, err := a.install.Plan(ctx, next, false)
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
	return out, beginInstall(a.install, w, documents, api.CallerFromContext(ctx).String())
}

// beginInstall starts an installation, or rejects its configuration.
func beginInstall(manager *install.Manager, w install.Want, documents []byte, by string) error {
	if err := manager.Begin(w, documents, by); err != nil {
		return transition.Refuse(err)
	}
	return nil
}

// installUnattended installs by the configuration of a boot medium, or of the image. There is no
// caller, so the console and the topic report an error. It is called again when disks are added or
// removed; a failure after the first write is not retried by itself.
func installUnattended(ctx context.Context, m *machine) {
	now := m.config.active.Current()
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
		out.Bootable = out.Bootable || p.Label == layout.ESP && p.Loader
		out.Partitions = append(out.Partitions, install.Partition{Number: p.Number, Label: p.Label, Type: p.Type, UUID: p.UUID, Size: p.Size, Content: p.Content.String()})
	}
	return out
}
