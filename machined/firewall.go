package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// packetRules is the state of the nftables rules that were installed. It is stored, not read from
// the kernel: no other component changes the tables.
type packetRules struct {
	firewall string // commands of the firewall table; empty if none were installed
	guard    string // commands of the port guard
	// the services of the cluster have started: the former rules stay if other rules fail
	started bool
}

// setRules installs commands of nft(8), all of them or none; modules are the kernel modules that
// they need.
type setRules func(ctx context.Context, commands string, modules ...string) error

// install installs a firewall. If the kernel rejects a wanted firewall before the cluster's
// services have started, install drops all connections to the machine except connections to its
// API; after the start the former rules stay.
func (r *packetRules) install(ctx context.Context, set setRules, want *firewall.Config) error {
	commands := want.Commands(nodespec.PodBridge)
	err := set(ctx, commands, "nft_reject_inet")
	switch {
	case err == nil:
		r.firewall = commands
		return nil
	case want == nil || r.started || r.firewall != "":
		return fmt.Errorf("firewall: %w; the former rules stay active until a retry succeeds", err)
	}
	closed := firewall.APIOnly(paths.PortApid)
	if last := set(ctx, closed); last != nil {
		return fmt.Errorf("firewall: %w; the kernel rejects other rules too (%w): the cluster's services wait until a retry succeeds", err, last)
	}
	r.firewall = closed
	return fmt.Errorf("firewall: %w; only port %d of the machine is reachable until a retry succeeds", err, paths.PortApid)
}

// exposed reports whether a firewall is wanted and the kernel has no rules in its place.
func (r *packetRules) exposed(want *firewall.Config) bool {
	return want != nil && r.firewall == "" && !r.started
}

// setFirewall is the operation that installs or deletes the firewall table.
type setFirewall struct {
	m    *machine
	want *firewall.Config
}

func (s setFirewall) String() string {
	if s.want == nil {
		return "accept all connections"
	}
	return fmt.Sprintf("accept the connections of %d rules, and reject all others", len(s.want.Lines())-1)
}

// Do is atomic: nft(8) sends one transaction to the kernel.
func (s setFirewall) Do(ctx context.Context) error {
	rules, _ := s.m.packets.Get()
	err := rules.install(ctx, s.m.setRules, s.want)
	s.m.packets.Update(func(r packetRules) packetRules { r.firewall = rules.firewall; return r })
	return err
}

// setGuard is the operation that installs the port guard.
type setGuard struct {
	m        *machine
	commands string
}

func (setGuard) String() string { return "keep Services and pods from the machine's own ports" }

// Do is atomic, like that of setFirewall.
func (s setGuard) Do(ctx context.Context) error {
	if err := s.m.setRules(ctx, s.commands, "nft_chain_nat", "nft_nat", "nft_fib_inet", "nft_reject_inet"); err != nil {
		return fmt.Errorf("port guard: cannot keep Services and pods from the machine's own ports: %w; it is retried", err)
	}
	s.m.packets.Update(func(r packetRules) packetRules { r.guard = s.commands; return r })
	return nil
}

// convergeFirewall installs the firewall of a configuration (nil for none) and the port guard. The
// caller holds m.reconcileMu, or runs before its first holder. The health reports a failure.
func (m *machine) convergeFirewall(ctx context.Context, c *config.Config) error {
	want, guard := nodeplan.Firewall(c), nodeplan.Guard(c).Commands(nodespec.PodBridge)
	commands := want.Commands(nodespec.PodBridge)
	converge := func(differs func(packetRules) bool, op reconcile.Op) error {
		return reconcile.Converge(ctx, reconcile.Config{
			Name: "firewall", Report: m.report,
			Diff: func(context.Context) ([]reconcile.Op, error) {
				if rules, _ := m.packets.Get(); !differs(rules) {
					return nil, nil
				}
				return []reconcile.Op{op}, nil
			},
		})
	}
	err := errors.Join(
		converge(func(r packetRules) bool { return commands != cmp.Or(r.firewall, firewall.Absent) }, setFirewall{m, want}),
		converge(func(r packetRules) bool { return guard != r.guard }, setGuard{m, guard}),
	)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	m.rulesProblem.Set(problem)
	return err
}

// firewallDryRun returns the rules of the next configuration if they differ.
func firewallDryRun(before, next *config.Config) []string {
	have, want := nodeplan.Firewall(before), nodeplan.Firewall(next)
	switch {
	case have.Commands(nodespec.PodBridge) == want.Commands(nodespec.PodBridge):
		return nil
	case want == nil:
		return []string{"accept all connections"}
	}
	return want.Lines()
}
