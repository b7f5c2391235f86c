package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
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
func shutDown(m *machine, to power.Mode) func(context.Context, machinedapi.Shutdown) error {
	return func(ctx context.Context, s machinedapi.Shutdown) error {
		return m.power.Go(ctx, power.Away{To: to, GracePeriod: s.GracePeriod, Wipe: s.Wipe, Force: s.Force, By: s.By, Drain: s.Drain})
	}
}

// awayDeps are the dependencies of a reboot, a shutdown and a reset. They use packages that are
// made later. A reset, and the time after a drain, continue if the caller disconnects.
func awayDeps(m *machine) power.AwayDeps {
	return power.AwayDeps{
		Permit: func(ctx context.Context, a power.Away) (giveBack func(), err error) {
			if len(a.Wipe) > 0 || m.domains.drain.Wanted(a.Drain) {
				ctx = m.power.Running()
			}
			return m.guard.Permit(ctx, awayRequest(a))
		},
		Confirm: func(a power.Away) error { return m.guard.Confirm(m.power.Running(), awayRequest(a)) },
		Drain:   func(a power.Away) (bool, error) { return m.domains.drain.Drain(m.power.Running(), awayOrder(a)) },
		Undo:    func(a power.Away) { m.domains.drain.Undo(awayOrder(a)) },
		Leave:   func(by string) error { return m.etcd.Leave(by) },
		Prepare: func() error { return m.domains.volumes.PrepareReset() },
	}
}

// awayRequest returns the question to the cluster.
func awayRequest(a power.Away) disruption.Request {
	return disruption.Request{Operation: a.Operation(), Force: a.Force, By: a.By, GracePeriod: a.GracePeriod}
}

// awayOrder returns the drain before an operation.
func awayOrder(a power.Away) drain.Order {
	return drain.Order{Operation: a.Operation().Name(), By: a.By, Policy: a.Drain}
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

// upgradeDrain is the drain before an upgrade or a rollback.
type upgradeDrain struct{ m *machine }

func (d upgradeDrain) Wanted() bool { return d.m.domains.drain.Wanted(config.Drain{}) }

func (d upgradeDrain) Drain(ctx context.Context, o disruption.Operation, by string) error {
	_, err := d.m.domains.drain.Drain(ctx, drain.Order{Operation: o.Name(), By: by})
	return err
}

func (d upgradeDrain) Undo(o disruption.Operation, by string) {
	d.m.domains.drain.Undo(drain.Order{Operation: o.Name(), By: by})
}

// ownDrain returns the last drain of the machine's own node for its object; nil if there is none.
func ownDrain(all []drain.State) *api.Drain {
	i := slices.IndexFunc(all, func(s drain.State) bool { return s.Operation != removal })
	if i < 0 {
		return nil
	}
	s := all[i]
	out := &api.Drain{
		Operation: s.Operation, Policy: s.Policy, Phase: string(s.Phase), Started: timestamppb.New(s.Started), Deadline: timestamppb.New(s.Deadline),
		Evicted: int64(s.Evicted), Left: int64(s.Left), Problem: s.Problem,
	}
	for _, p := range s.Blocking() {
		out.Blocking = append(out.Blocking, &api.BlockingPod{Pod: p.Pod, Budget: p.Budget, Message: p.Message})
	}
	return out
}

// removal is the operation of a drain of another machine.
const removal = "removal"

// drainMember drains the node of another machine before its removal.
func drainMember(m *machine) func(node string, policy config.Drain, by string) (undo func(), err error) {
	return func(node string, policy config.Drain, by string) (undo func(), err error) {
		order := drain.Order{Operation: removal, By: by, Node: node, Policy: policy}
		_, err = m.domains.drain.Drain(m.power.Running(), order)
		return func() { m.domains.drain.Undo(order) }, err
	}
}

// permitApply asks the cluster for the reboot with which a configuration becomes active.
func permitApply(ctx context.Context, g *guard.Guard, by string) (giveBack func(), err error) {
	giveBack, err = g.Permit(ctx, disruption.Request{Operation: disruption.Reboot, By: by})
	if no := (*disruption.Refusal)(nil); errors.As(err, &no) {
		err = transition.Refuse(fmt.Errorf("it needs a reboot: %s; %s, or stage it (--mode staged, with --no-trial if it can cut you off) and reboot with --force", no.Reason, no.Remedy))
	}
	return giveBack, err
}
