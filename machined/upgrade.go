package main

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/apid"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// The environment of package upgrade.

func newUpgrade(m *machine) *upgrade.Upgrade {
	return upgrade.New(upgrade.Deps{
		Release: func() buildinfo.Release { return m.system.release },
		Disk: upgrade.Disk{
			RunningSlot: m.system.slot,
			Slots: func() (upgrade.Slot, error) {
				disks, _ := m.disks.State().Get()
				return findSlots(disks.Disks, m.system.slot)
			},
			LoadModules:    m.system.kernel.LoadModules,
			StorageProblem: func() string { why, _ := m.disks.Problem().Get(); return why },
		},
		Files: upgrade.Files{
			Records:        upgrade.Store{Dir: paths.Upgrade},
			Inbox:          upgrade.Inbox{Dir: paths.Bundle, Free: upgrade.FreeSpace, StallTimeout: transfer.StallTimeout},
			ReleaseKeys:    paths.ReleaseKeys,
			APICertificate: filepath.Join(paths.ApidDir, apid.ServerCertFile),
			EtcdSnapshots:  paths.EtcdSnapshots,
		},
		Configuration: upgrade.Configuration{
			Confirmed:  m.active.Store().Confirmed,
			DropStaged: m.active.Store().DropStaged,
			Restore:    m.active.Restore,
			Reload: func() {
				m.active.Lock()
				defer m.active.Unlock()
				_, _ = m.active.Reload() // the configuration topic reports the problem
			},
		},
		Trial: upgrade.Trial{
			Started: m.progress.Started(),
			Watch:   func() upgrade.HealthWatcher { return watchHealth(m) },
			Events: func() (out []upgrade.Event) {
				for _, e := range m.events.After(0) {
					out = append(out, upgrade.Event{Time: e.Time, Source: e.Source, Text: e.Message})
				}
				return out
			},
			Services:    m.services,
			KernelStart: func() (time.Time, error) { s, err := m.system.kernel.ReadSystem(); return s.Started, err },
		},
		Network: upgrade.Network{
			Addresses: func(c *config.Config) []netip.Addr {
				state, _ := m.network.State.Get()
				return nodeplan.Addresses(c, state)
			},
			Gateways: func() []func(context.Context) error {
				state, _ := m.network.State.Get()
				return gatewayProbes(state)
			},
		},
		Node: upgrade.Node{
			Config:  func() *config.Config { now := m.active.Current(); return now.Config },
			Removed: func() bool { member, _ := m.members.Worker.State.Get(); return member.Removed },
			Command: m.commands.run,
		},
		PeerEndpoint: m.members.Peers.Endpoint,
		Serve:        machinedapi.Serve(m.power.Running().Done()),
		Reboot:       func(why string) error { return m.power.Shutdown(power.Request{To: power.Reboot, Why: why}) },
		Running:      m.power.Running(),
		Restarter:    m.panics.Restarter(),
		Event:        func(kind, message string) { m.events.Add("upgrade", kind, message) },
		Console:      m.events.LogConsole,
	})
}

// stepUpgrade loads the record of the last upgrade, before the configuration is loaded, which a
// rollback replaces.
func stepUpgrade(ctx context.Context, m *machine) error {
	m.upgrade.Controller.Load(ctx)
	return nil
}

// findSlots returns the partitions of the two slots, of which a system runs in slot running.
func findSlots(disks []disk.Disk, running string) (upgrade.Slot, error) {
	label := disklayout.RootA
	if running == "A" {
		label = disklayout.RootB
	}
	for _, d := range disks {
		p := upgrade.Slot{Disk: d.Path, Label: label}
		for _, part := range d.Partitions {
			switch part.Label {
			case disklayout.ESP:
				p.ESP = part.Path
			case label:
				p.Root, p.Number, p.Size, p.UUID = part.Path, part.Number, int64(part.Size), part.UUID
			case disklayout.RootA, disklayout.RootB:
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
