package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// packetRules is the state of the nftables rules that were installed. It is stored, not read from
// the kernel: no other component changes the tables.
type packetRules struct {
	firewall string // commands of the firewall table; empty if none were installed
	guard    string // commands of the port guard
	// the services of the cluster have started: the former rules stay if other rules fail
	started bool
}

// packetFilter is the table of the firewall and the port guard in the kernel.
type packetFilter struct {
	mu    sync.Mutex
	rules packetRules
}

// get returns the installed rules.
func (p *packetFilter) get() packetRules {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rules
}

// update records a change of the installed rules.
func (p *packetFilter) update(change func(*packetRules)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.rules)
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
	filter *packetFilter
	set    setRules
	want   *firewall.Config
}

func (s setFirewall) String() string {
	if s.want == nil {
		return "accept all connections"
	}
	return fmt.Sprintf("accept the connections of %d rules, and reject all others", len(s.want.Lines())-1)
}

// Details returns the rules, for a dry run.
func (s setFirewall) Details() []string {
	if s.want == nil {
		return []string{s.String()}
	}
	return s.want.Lines()
}

// Do is atomic: nft(8) sends one transaction to the kernel.
func (s setFirewall) Do(ctx context.Context) error {
	rules := s.filter.get()
	err := rules.install(ctx, s.set, s.want)
	s.filter.update(func(r *packetRules) { r.firewall = rules.firewall })
	return err
}

// setGuard is the operation that installs the port guard.
type setGuard struct {
	filter   *packetFilter
	set      setRules
	commands string
}

func (setGuard) String() string { return "keep Services and pods from the machine's own ports" }

// Do is atomic, like that of setFirewall.
func (s setGuard) Do(ctx context.Context) error {
	if err := s.set(ctx, s.commands, "nft_chain_nat", "nft_nat", "nft_fib_inet", "nft_reject_inet"); err != nil {
		return fmt.Errorf("port guard: cannot keep Services and pods from the machine's own ports: %w; it is retried", err)
	}
	s.filter.update(func(r *packetRules) { r.guard = s.commands })
	return nil
}
