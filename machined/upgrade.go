package main

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
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
			Watch:   m.watchHealth,
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

// healthWatcher watches the health of a version on trial.
type healthWatcher struct {
	version        string
	storageProblem *cell.Cell[string]
	hasStored      func() bool // a configuration
	config         *cell.Watcher[activeconfig.Active]
	services       *cell.Watcher[[]supervise.Status]
	members        *cell.Watcher[membership.State]
	rules          *cell.Watcher[string]
	panics         *cell.Watcher[events.PanicState]
}

func (m *machine) watchHealth() upgrade.HealthWatcher {
	return healthWatcher{
		version: m.system.release.Version, storageProblem: m.disks.Problem(), hasStored: m.active.HasStored,
		config: m.active.Cell().Watch(), services: m.services.Status().Watch(),
		members: m.members.Worker.State.Watch(), rules: m.packets.Problem().Watch(), panics: m.panics.State().Watch(),
	}
}

func (w healthWatcher) Health() upgrade.Health {
	now := w.config.Current()
	storage, _ := w.storageProblem.Get()
	failed := failedCheck(now, w.members.Current(), w.services.Current(), w.hasStored(), storage)
	return upgrade.Health{Config: now.Config, Failed: cmp.Or(failed, w.rules.Current())}
}

func (w healthWatcher) Panic() string { return w.panics.Current().Reason(w.version) }

func (w healthWatcher) Wait(ctx context.Context) error {
	select {
	case <-w.config.Changed():
	case <-w.services.Changed():
	case <-w.members.Changed():
	case <-w.rules.Changed():
	case <-w.panics.Changed():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// failedCheck returns the first failed check of a version on trial; "" if all passed. Without a
// configuration the management API is the only check, because a client can apply a configuration
// over it; with a configuration all checks of `orlopctl health` count. storage is the reason for
// which STATE is absent: the former version had STATE, or no upgrade would have been possible.
func failedCheck(now activeconfig.Active, member membership.State, services []supervise.Status, stored bool, storage string) string {
	switch {
	case storage != "":
		return "storage: " + storage
	case stored && now.Config == nil:
		return "configuration: the stored one is unusable"
	case now.Config == nil || now.Config.Cluster == nil:
		i := slices.IndexFunc(services, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceApid })
		if i < 0 || services[i].State != supervise.Running {
			return "management API: not answering yet"
		}
		return ""
	}
	for _, c := range clusterHealth(now, member, services).Checks {
		if !c.Ok && !isUserProblem(c) {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// isUserProblem reports whether objects of users cause a failed check: the version is not at fault,
// and an upgrade that fixes the problem must be possible.
func isUserProblem(c *api.HealthCheck) bool {
	return strings.HasPrefix(c.Detail, nodespec.ProblemPrefix) && slices.Contains([]string{"bootstrap", "metrics", nodespec.Extensions}, c.Name)
}
