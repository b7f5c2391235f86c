package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/apid"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/hardware"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How a machine that runs from memory is installed:
//
//  1. A configuration arrives over the API (applier) or is on a boot medium (activeconfig). A
//     problem with the configuration or the disks is reported, and no disk is written.
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
			CheckRollback: func(ctx context.Context, saved []byte, force bool) error { return checkRollback(ctx, m, saved, force) },
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
				return state.GatewayProbes()
			},
		},
		Node: upgrade.Node{
			Config:  func() *config.Config { now := m.config.active.Current(); return now.Config },
			Egress:  func() egress.Config { return egressOf(m) },
			Command: m.processes.commands.run,
			Drain:   drain.Configured{Drainer: m.domains.drain},
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
			return hardware.UpgradeSlot(disks.Disks, m.system.slot)
		},
		LoadModules:    m.system.kernel.LoadModules,
		StorageProblem: m.domains.disks.StorageProblem,
		Firmware:       newFirmware(m),
		CheckUnlock:    func(ctx context.Context, image func() (*os.File, error)) error { return checkUnlock(ctx, m, image) },
	}
}

// beginInstallation does the work of apply on a machine that runs from memory.
func (a *applier) beginInstallation(ctx context.Context, before, next *config.Config, documents []byte, dry bool) (outcome, error) {
	w, err := a.install.Plan(ctx, next, false)
	if problems := (config.Problems)(nil); errors.As(err, &problems) {
		return outcome{}, problems
	}
	if err != nil {
		return outcome{}, transition.Refuse(err)
	}
	out := outcome{answer: &api.ApplyResponse{Install: w.Disk.Path}}
	out.add("config", config.Changes(before, next))
	out.add("install", install.Print(w))
	if dry {
		return out, nil
	}
	return out, a.install.Begin(w, documents, api.CallerFromContext(ctx).String())
}

// installUnattended starts the installation that the configuration of a boot medium, or of the
// image, requests. The callers call it again when disks are added or removed.
func installUnattended(ctx context.Context, m *machine) {
	if now := m.config.active.Current(); m.system.inMemory() {
		m.install.Unattended(ctx, now.Config, now.Documents, now.Source)
	}
}

// installDisks reads the disks for package install.
func installDisks(ctx context.Context, disks *disk.Controller) ([]install.Disk, error) {
	have, err := disk.Read(ctx, disks.Examine(diskprobe.Fresh))
	if err != nil {
		return nil, err
	}
	media, err := seed.List(ctx, disks.Prober())
	return hardware.InstallDisks(have.Disks, media), err
}
