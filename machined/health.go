package main

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/machined/extensions"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// The wiring of the health.

func newHealth(m *machine) *health.Reporter {
	return health.NewReporter(health.Deps{
		Read: func() health.Snapshot { return healthSnapshot(m) },
		Changes: append(healthChanges(m),
			m.config.reconciler.State().View().Changes(), m.domains.disks.State().View().Changes(), m.domains.network.State.View().Changes(),
			m.guard.State().View().Changes(), m.domains.volumes.State().View().Changes(), m.domains.wear.Disks().View().Changes(),
		),
		ReadEpochFloor: m.upgrade.Controller.ReadEpochFloor,
		ReleaseCheck: func(have *api.HealthResponse, floor int, now time.Time) {
			upgrade.ReleaseCheck(have, m.system.release, floor, now)
		},
		WaitingServices: func(ctx context.Context, c *config.Config) ([]string, error) {
			return m.config.reconciler.WaitingServices(ctx, c)
		},
	})
}

// healthChanges are the changes after which the checks run again: the checks of the health, and of
// a version on trial.
func healthChanges(m *machine) []cell.View[struct{}] {
	return []cell.View[struct{}]{
		m.config.active.Cell().View().Changes(), m.processes.services.Status().View().Changes(), m.members.Worker.State.View().Changes(),
		m.domains.packets.Problem().View().Changes(), m.reports.panics.State().View().Changes(), m.domains.extensions.States().View().Changes(),
	}
}

// machineHealth returns the state of the machine from which package health computes the checks.
func machineHealth(m *machine) health.Machine {
	now := m.config.active.Current()
	member, _ := m.members.Worker.State.Get()
	services, _ := m.processes.services.Status().Get()
	return health.Machine{
		Config: now.Config, Applied: now.At, Expected: nodeplan.Expected(now.Config), Services: services,
		Membership: health.Membership{Joined: member.Joined, Removed: member.Removed, Problem: member.Problem},
	}
}

func healthSnapshot(m *machine) health.Snapshot {
	s := health.Snapshot{Machine: machineHealth(m)}
	network, _ := m.domains.network.State.Get()
	converged, _ := m.config.reconciler.State().Get()
	volumes, _ := m.domains.volumes.State().Get()
	panics, _ := m.reports.panics.State().Get()
	extended, _ := m.domains.extensions.States().Get()
	disks, _ := m.domains.disks.State().Get()
	worn, _ := m.domains.wear.Disks().Get()
	turn, _ := m.guard.State().Get()
	s.Firewall, _ = m.domains.packets.Problem().Get()
	s.Operations, s.Volumes = converged.Problem(s.Machine.Config, network), volumes.HealthProblem()
	s.Panics, s.Extensions, s.Storage, s.Wear = panics.Check(), extensions.Check(extended), health.Storage(disks.Filesystems), health.Wear(wear.Warnings(worn))
	s.Turn, s.Encryption = turn.Check(), health.Encryption(s.Machine.Config, protection(disks, m.domains.encryption.demanded()))
	return s
}

// watchHealth watches the health for a version on trial.
func watchHealth(m *machine) upgrade.HealthWatcher {
	return health.NewTrialWatcher(health.TrialDeps{
		Read: func() health.Trial {
			t := health.Trial{Machine: machineHealth(m), StorageProblem: m.domains.disks.StorageProblem()}
			extended, _ := m.domains.extensions.States().Get()
			t.Firewall, _ = m.domains.packets.Problem().Get()
			t.Extensions = extensions.Problem(extended, m.system.release.Version)
			return t
		},
		Changes:   healthChanges(m),
		HasStored: m.config.active.HasStored,
		Panic: func() string {
			panics, _ := m.reports.panics.State().Get()
			return panics.Reason(m.system.release.Version)
		},
	})
}
