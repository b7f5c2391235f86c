package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// resyncInterval is the interval at which credentials are reconciled without a change: after a
// change of the clock a certificate may be due at once. Reading them takes less than a millisecond.
const resyncInterval = membership.ResyncInterval

// runReconcile reconciles the machine each time the configuration, the addresses or the ledger
// change.
func (m *machine) runReconcile(ctx context.Context) {
	configs, states, members, artifacts := m.config.Watch(), m.networkState.Watch(), m.members.Worker.State.Watch(), m.images.Artifacts().Watch()
	books := m.members.Ledger.Changes().Watch()
	tick := time.NewTicker(resyncInterval)
	defer tick.Stop()
	var problem string
	for {
		// Read before the reconciliation, which can take seconds: the select below sees a change
		// during it.
		now, state := configs.Current(), states.Current()
		members.Current()
		artifacts.Current()
		books.Current()
		if early := time.Until(now.due); early > 0 {
			select {
			case <-time.After(early):
			case <-configs.Changed():
				continue
			case <-ctx.Done():
				return
			}
		}
		err := m.reconcile(ctx, now.config, state)
		m.convergence.Update(func(s convergence) convergence { return s.next(now.config, failuresOf(err), time.Now()) })
		switch {
		case err != nil && err.Error() != problem:
			problem = err.Error()
			m.events.add("config", "failure", problem)
			m.logConsole(problem)
		case err == nil:
			problem = ""
		}
		select {
		case <-configs.Changed():
		case <-states.Changed():
		case <-members.Changed():
		case <-artifacts.Changed():
		case <-books.Changed():
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile converges the machine to a configuration once (nil for none). It is idempotent.
func (m *machine) reconcile(ctx context.Context, c *config.Config, state network.State) error {
	m.reconcileMu.Lock()
	defer m.reconcileMu.Unlock()
	if m.shutdown.Load() != nil {
		return nil
	}
	return convergeAll(ctx, m.domains(), func() goal { return m.goal(c, state) }, m.report)
}

// reportUnusedResolvers reports the resolvers of the machine that pods do not use, once per change.
func (m *machine) reportUnusedResolvers(unused []string) {
	if slices.Equal(unused, m.unusedResolvers) {
		return
	}
	m.unusedResolvers = unused
	for _, line := range unused {
		m.events.add("network", "failure", line)
	}
}

// applyServices writes the files of the services and then sets the services that should run; the
// service manager performs the operations.
func (m *machine) applyServices(_ context.Context, g goal, _ func() error) error {
	w := g.want
	m.enterHold(w, g.state)
	switch w.Services.Hold {
	case nodeplan.HoldNothing:
	case nodeplan.HoldRefused:
		return errors.Join(w.Services.Problem, m.services.Set(w.Services.Now(nil)))
	case nodeplan.HoldNoAddress, nodeplan.HoldRemoved:
		running := m.services.Services()
		if now := w.Services.Now(running); len(supervise.Diff(running, now)) > 0 {
			return m.services.Set(now)
		}
		return nil
	default:
		return m.services.Set(w.Services.Now(nil))
	}
	if err := prepareKubernetes(w.Node); err != nil {
		return err
	}
	if err := m.images.ConfigureRegistries(g.config); err != nil {
		return err
	}
	if w.Services.Problem != nil {
		return w.Services.Problem
	}
	m.enter("running", "")
	m.packets.SetStarted()
	if m.shutdown.Load() != nil { // the shutdown meanwhile decides which services run
		return nil
	}
	return m.services.Set(w.Services.Now(nil))
}

// enterHold sets the step of the boot to the reason for which services are held back, and records
// since when the machine has no address.
func (m *machine) enterHold(w nodeplan.Want, state network.State) {
	member, _ := m.members.Worker.State.Get()
	switch w.Services.Hold {
	case nodeplan.HoldNoNode, nodeplan.HoldRefused, nodeplan.HoldExposed:
		return // the errors are reported
	case nodeplan.HoldNoAddress:
		m.enter("services", "an address: "+strings.Join(append(state.Problems, "none on any link yet"), "; "))
		now := time.Now()
		m.noAddressSince.CompareAndSwap(nil, &now)
		return
	case nodeplan.HoldNotJoined:
		m.enter("joining", strings.TrimSuffix("the cluster: "+member.Problem, ": "))
	case nodeplan.HoldRemoved: // membership.Worker stops the running services in order
		m.enter("removed", member.Problem+"; reset it, or give it another ticket (`orlopctl nodes add`)")
	case nodeplan.HoldNothing:
	}
	m.noAddressSince.Store(nil)
	m.reportUnusedResolvers(w.Node.UnusedResolvers)
}

// noAddressTime is the time for which services continue with their known addresses after the
// machine has lost its address. A longer loss is no renewal of a lease: the services would fail and
// restart, at full load, until it ends.
const noAddressTime = time.Minute

// driftSources returns the machine's domains, after the configuration itself. No domain reveals a secret: operations name
// files and parameters, and operations that write keys do not show the content.
func (m *machine) driftSources() []drift.Source {
	sources := []drift.Source{{Name: "configuration", Diff: m.configurationDrift}}
	for _, of := range m.domains() {
		sources = append(sources, drift.Source{Name: of.name, Diff: func(ctx context.Context) ([]string, error) { return m.driftOf(ctx, of) }})
	}
	return sources
}

// driftEpoch changes with the active configuration, and with every reconciliation.
func (m *machine) driftEpoch() uint64 {
	_, configured := m.config.Get()
	_, settled := m.convergence.Get()
	return configured + settled
}

// configurationDrift has no operations of its own: it returns the failures of the last
// reconciliation, of every domain, so that each failure of reconcile is visible here.
func (m *machine) configurationDrift(context.Context) ([]string, error) {
	if m.shutdown.Load() != nil {
		return nil, drift.ErrAbsent
	}
	now, _ := m.config.Get()
	s, _ := m.convergence.Get()
	if s.config != now.config {
		return []string{"activate the configuration"}, nil
	}
	if len(s.failures) > 0 {
		return nil, errors.New(strings.Join(s.failures, "; "))
	}
	return nil, nil
}
