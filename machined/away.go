package main

import (
	"context"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The wiring of the operations after which the machine is away: the request for the cluster's
// permission, the drain, the shutdown and the reset.

func newGuard(m *machine) *guard.Guard {
	return guard.New(guard.Deps{
		Machine: func() guard.Machine { return machineInCluster(m) },
		Command: m.processes.commands.run,
		File:    paths.Turn,
		Healthy: func(ctx context.Context) error {
			undecided := cell.Map(m.upgrade.Controller.State(), func(s upgrade.State) bool { return s.Undecided() != nil })
			// Only a new installation encrypts a plain disk, so the turn does not wait for it.
			return guard.AwaitSettled(ctx, undecided, health.EncryptionCheck, m.reports.health.Watch)
		},
		Undecided: func() bool { return m.upgrade.Controller.Record().Undecided() != nil },
		Stopping:  m.power.Running(),
		Event:     m.reports.events.From("disruption"),
	})
}

// machineInCluster describes the machine to package disruption.
func machineInCluster(m *machine) guard.Machine {
	c := m.config.active.Current().Config
	member, _ := m.members.Worker.State.Get()
	state, _ := m.domains.network.State.Get()
	return guard.Describe(guard.Facts{
		Config: c, InMemory: m.system.inMemory(), Kubernetes: m.system.release.Kubernetes, Others: len(m.members.Peers.Others(c)) > 0,
		Joined: member.Joined, Removed: member.Removed, Addresses: ownAddresses(state),
	})
}

func newDrainer(m *machine) *drain.Drainer {
	return drain.New(drain.Deps{
		Config:   func() *config.Config { return m.config.active.Current().Config },
		Removed:  func() bool { member, _ := m.members.Worker.State.Get(); return member.Removed },
		Stopping: m.power.Running(),
		Command:  m.processes.commands.run,
		Event:    m.reports.events.From("drain"),
	})
}

// shutDown returns the function that shuts the machine down for a caller, unless the cluster needs
// the machine.
func shutDown(m *machine, to power.Mode) func(context.Context, machinedapi.Shutdown) error {
	return func(ctx context.Context, s machinedapi.Shutdown) error {
		return m.power.Go(ctx, power.Away{To: to, GracePeriod: s.GracePeriod, Wipe: s.Wipe, Force: s.Force, By: s.By, Drain: s.Drain})
	}
}

// awayDeps are the dependencies of a reboot, a shutdown and a reset. Each is a function that reads
// a value of m only when it is called, because these values are created later.
func awayDeps(m *machine) power.AwayDeps {
	return power.AwayDeps{
		Permit: func(ctx context.Context, r disruption.Request) (giveBack func(), err error) {
			return m.guard.Permit(ctx, r)
		},
		Confirm: func(ctx context.Context, r disruption.Request) error { return m.guard.Confirm(ctx, r) },
		Wanted:  func(policy config.Drain) bool { return m.domains.drain.Wanted(policy) },
		Drain: func(ctx context.Context, o disruption.Operation, by string, policy config.Drain) (bool, error) {
			return m.domains.drain.DrainOwn(ctx, o, by, policy)
		},
		Undo:    func(o disruption.Operation, by string) { m.domains.drain.UndoOwn(o, by) },
		Leave:   func(by string) error { return m.etcd.Leave(by) },
		Prepare: func() error { return m.domains.volumes.PrepareReset() },
	}
}

// wipe erases the partitions with these labels, for a reset. It erases the parts of DATA on other
// disks before STATE: after an interruption, the machine still has its configuration and can be
// reset again.
func wipe(ctx context.Context, m *machine, labels []string) error {
	say := func(line string) { m.reports.events.LogConsole("reset: " + line) }
	if err := m.domains.volumes.WipeParts(labels, say); err != nil {
		say(err.Error())
	}
	return m.domains.disks.Wipe(ctx, labels)
}

// wipeRemoved erases this worker after its removal from the cluster, and powers it off.
func wipeRemoved(ctx context.Context, m *machine) error {
	return m.power.Go(ctx, power.Away{To: power.PowerOff, Wipe: []string{layout.Data, layout.State}, Force: true, By: "its removal from the cluster"})
}
