package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The wiring of the questions to the cluster before the machine is away.

func newGuard(m *machine) *guard.Guard {
	return guard.New(guard.Deps{
		Machine:   func() guard.Machine { return machineInCluster(m) },
		Command:   m.processes.commands.run,
		File:      paths.Turn,
		Healthy:   func(ctx context.Context) error { return awaitSettled(ctx, m) },
		Undecided: func() bool { return m.upgrade.Controller.Record().Undecided() != nil },
		Stopping:  m.power.Running(),
		Event:     m.reports.events.From("disruption"),
	})
}

// machineInCluster describes the machine to package disruption.
func machineInCluster(m *machine) guard.Machine {
	c := m.config.active.Current().Config
	if c == nil || c.Cluster == nil || m.system.inMemory() {
		return guard.Machine{}
	}
	member, _ := m.members.Worker.State.Get()
	state, _ := m.domains.network.State.Get()
	out := guard.Machine{
		Machine: disruption.Machine{
			Name: c.Machine.Metadata.Name, ControlPlane: c.IsControlPlane(), Kubernetes: m.system.release.Kubernetes, Others: len(m.members.Peers.Others(c)) > 0,
		},
		InCluster: !member.Removed && (!c.IsWorker() || member.Joined),
	}
	own := ownAddresses(state)
	if i := slices.IndexFunc(c.Cluster.Spec.ControlPlanes, func(a netip.Addr) bool { return slices.Contains(own, a) }); i >= 0 {
		out.Address = c.Cluster.Spec.ControlPlanes[i].String()
	}
	return out
}

// awaitSettled waits until the machine is healthy, apart from the turn, and the last upgrade is
// decided.
func awaitSettled(ctx context.Context, m *machine) error {
	decided := func(s upgrade.State) bool { return s.Undecided() == nil }
	for {
		if _, err := cell.Wait(ctx, m.upgrade.Controller.State(), decided); err != nil {
			return err
		}
		err := reportHealth(ctx, m, func(have *api.HealthResponse) (more bool, err error) {
			return slices.ContainsFunc(have.Checks, func(c *api.HealthCheck) bool { return !c.Ok && c.Name != guard.CheckName }), nil
		})
		if now, _ := m.upgrade.Controller.State().Get(); err != nil || decided(now) {
			return err
		}
	}
}

// shutDown returns the function that shuts the machine down for a caller, unless the cluster needs
// it.
func shutDown(m *machine, to power.Mode, operation disruption.Operation) func(context.Context, machinedapi.Shutdown) error {
	return func(ctx context.Context, s machinedapi.Shutdown) error {
		r := power.Request{To: to, GracePeriod: s.GracePeriod, Why: "asked by " + s.By}
		if m.power.Stopping() {
			return m.power.Shutdown(r)
		}
		giveBack, err := m.guard.Permit(ctx, disruption.Request{Operation: operation, Force: s.Force, By: s.By, GracePeriod: s.GracePeriod})
		if err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		if err := m.power.Shutdown(r); err != nil {
			giveBack()
			return err
		}
		return nil
	}
}

// permitReset asks the cluster for a reset, which continues if the caller disconnects.
func permitReset(m *machine, data, force bool, by string) (giveBack func(), err error) {
	return m.guard.Permit(m.power.Running(), resetRequest(data, force, by))
}

// confirmReset asks again.
func confirmReset(m *machine, data, force bool, by string) error {
	return m.guard.Confirm(m.power.Running(), resetRequest(data, force, by))
}

// resetRequest returns the request of a reset. data: the reset wipes the data of etcd.
func resetRequest(data, force bool, by string) disruption.Request {
	operation := disruption.Reset
	if data {
		operation = disruption.ResetData
	}
	return disruption.Request{Operation: operation, Force: force, By: by}
}

// permitApply asks the cluster for the reboot with which a configuration becomes active.
func permitApply(ctx context.Context, g *guard.Guard, by string) (giveBack func(), err error) {
	giveBack, err = g.Permit(ctx, disruption.Request{Operation: disruption.Reboot, By: by})
	if no := (*disruption.Refusal)(nil); errors.As(err, &no) {
		err = transition.Refuse(fmt.Errorf("it needs a reboot: %s; %s, or stage it (--mode staged, with --no-trial if it can cut you off) and reboot with --force", no.Reason, no.Remedy))
	}
	return giveBack, err
}
