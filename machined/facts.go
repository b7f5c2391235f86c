package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// transitionFacts returns the facts on which the change to the next configuration depends.
func (m *machine) transitionFacts(ctx context.Context, now activeconfig.Active, next *config.Config, r *api.ApplyRequest) (f transition.Facts, err error) {
	f = transition.Facts{
		Request: r, Trial: transition.PlanTrial(m.active.Fallback(now), next, r), OnTrial: now.OnTrial(), Now: time.Now(),
		Upgrade: m.upgrade.Controller.Record().Undecided(), Machine: m.machineFacts(next),
	}
	if f.Caller, err = callerFacts(ctx, next); err != nil {
		return f, err
	}
	f.Hardware, err = m.hardwareFacts(now.Config, next)
	return f, err
}

// machineFacts returns the facts on which the machine's ability to run a configuration depends.
func (m *machine) machineFacts(next *config.Config) transition.Machine {
	state, _ := m.network.State.Get()
	problem, _ := m.disks.Problem().Get()
	f := transition.Machine{Memory: m.facts.Memory, CPUs: m.facts.CPUs, InMemory: m.bootMedium != "", NoStorage: problem, Addresses: nodeplan.Addresses(next, state)}
	if next.Cluster != nil && !next.IsWorker() { // a worker holds no CA keys
		_, f.CAs = nodeplan.CAs(next.Cluster)
	}
	return f
}

// checkMachine rejects a configuration that this machine cannot run at present.
func (m *machine) checkMachine(next *config.Config) error {
	return transition.CheckMachine(next, m.machineFacts(next)).Err()
}

// callerFacts returns the facts about the caller.
func callerFacts(ctx context.Context, next *config.Config) (transition.Caller, error) {
	f := transition.Caller{CA: callerid.FromContext(ctx).Issuer}
	if f.CA == "" { // the caller is not an operator
		return f, nil
	}
	list, err := ownership.Operators(next)
	if err == nil && len(list) > 0 {
		f.Operators, err = pki.ParseCerts(list)
	}
	return f, err
}

// hardwareFacts returns the names of the next configuration that do not exist on this machine.
func (m *machine) hardwareFacts(before, next *config.Config) (f transition.Hardware, err error) {
	if f.MissingLinks, f.PresentLinks, err = m.network.Controller.MissingLinks(nodeplan.Network(next)); err != nil {
		return f, fmt.Errorf("network: cannot list links: %w", err)
	}
	f.KnownLinks = transition.LinkSelectors(before)
	f.Unusable, err = m.kernel.Unusable(m.hostConfig(before), m.hostConfig(next))
	return f, err
}

// apiFacts returns the facts on which the credentials of apid depend.
func (m *machine) apiFacts(c *config.Config, state network.State) nodeplan.Facts {
	member, _ := m.members.Worker.State.Get()
	f := nodeplan.Facts{Network: state, Trust: m.trustFacts(c), Member: nodeplan.Member{
		Joined: member.Joined, Removed: member.Removed, PodsStopped: member.PodsStopped, Machine: member.Certs.Machine, Node: member.Certs.Node,
	}}
	if own := m.identity.Load(); own != nil {
		f.Identity = own.Key
	}
	return f
}

// planFacts returns the facts on which the plan for a configuration depends.
func (m *machine) planFacts(c *config.Config, state network.State) nodeplan.Facts {
	f := m.apiFacts(c, state)
	f.Release, f.InMemory, f.PreviousSysctls = m.release, m.bootMedium != "", m.kernel.PreviousSysctls()
	f.Artifacts, _ = m.images.Artifacts().Get()
	if c != nil && c.Cluster != nil {
		f.Services.Refusal = m.checkMachine(c)
	}
	return f
}

// trustFacts returns the clients that the machine accepts.
func (m *machine) trustFacts(c *config.Config) (t nodeplan.Trust) {
	if t.Callers, t.Problem = m.callers(c); t.Problem != nil {
		return t
	}
	t.Revoked = m.members.Ledger.RevocationsForAPIServer(c)
	return t
}

// hostConfig returns the host settings of a configuration.
func (m *machine) hostConfig(c *config.Config) host.Config {
	f := nodeplan.Facts{PreviousSysctls: m.kernel.PreviousSysctls()}
	if own := m.identity.Load(); own != nil {
		f.Identity = own.Key
	}
	return nodeplan.Host(c, f)
}
