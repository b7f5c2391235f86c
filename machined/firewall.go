package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// firewallConfig returns the firewall of a configuration; nil if it admits all packets.
func firewallConfig(c *config.Config) *firewall.Config {
	if c == nil || c.Network.Spec.Firewall == nil {
		return nil
	}
	tcp := func(port int, from ...netip.Prefix) firewall.Rule {
		return firewall.Rule{Protocol: string(config.TransportTCP), Port: port, From: from}
	}
	out := &firewall.Config{Open: []firewall.Rule{tcp(paths.PortApid)}, SystemPorts: []int{paths.PortApid}}
	var planes []netip.Prefix
	if c.Cluster != nil {
		spec := c.Cluster.Spec
		for _, a := range slices.Concat(spec.ControlPlanes, spec.VirtualAddresses) {
			planes = append(planes, netip.PrefixFrom(a, a.BitLen()))
		}
		out.SystemPorts = append(out.SystemPorts, paths.PortKubelet)
		members := []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortMetrics}
		if !isWorker(c) {
			out.Open = append(out.Open, tcp(paths.PortKubernetes))
			out.SystemPorts = append(append(out.SystemPorts, paths.PortKubernetes), members...)
		}
		switch {
		case len(planes) > 0:
			out.Open = append(out.Open, tcp(paths.PortKubelet, slices.Concat(planes, otherFamily(spec))...))
		case isWorker(c): // the source addresses of its control plane are unknown
			out.Open = append(out.Open, tcp(paths.PortKubelet))
		}
		if !isWorker(c) && len(planes) > 0 {
			for _, port := range members {
				out.Open = append(out.Open, tcp(port, planes...))
			}
		}
		switch spec.Networks.Encapsulation {
		case config.EncapsulationWireGuard:
			out.Open = append(out.Open, firewall.Rule{Protocol: string(config.TransportUDP), Port: paths.PortWireGuard})
		case config.EncapsulationVXLAN:
			out.Open = append(out.Open, firewall.Rule{Protocol: string(config.TransportUDP), Port: paths.PortVXLAN})
		case config.EncapsulationNone: // packets between pods are not addressed to the machine
		}
	}
	var rules []firewall.Rule
	for _, r := range c.Network.Spec.Firewall.Allow {
		rules = append(rules, firewall.Rule{Protocol: string(r.Protocol), Port: r.Port, From: r.From})
	}
	out.Open = firewall.Allow(out.Open, rules, planes)
	return out
}

// otherFamily returns all IPv4 addresses if the control-plane addresses are IPv6 and the cluster
// has IPv4 too: the first address of a Node, at which API servers call its kubelet, is then IPv4
// (network.State.NodeAddresses), and the documents do not contain their source addresses.
func otherFamily(spec config.ClusterSpec) []netip.Prefix {
	is4 := func(r netip.Prefix) bool { return r.Addr().Is4() }
	if slices.ContainsFunc(spec.ControlPlanes, netip.Addr.Is4) || !slices.ContainsFunc(spec.Networks.Pods, is4) {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
}

// guardConfig returns the ports of the machine that no Service and no pod may take, for any
// configuration (nil for none).
func guardConfig(c *config.Config) firewall.Guard {
	g := firewall.Guard{TCP: nodespec.MachineTCP(), UDP: nodespec.MachineUDP(), Loopback: nodespec.LoopbackTCP(), Closed: nodespec.ClosedToPods()}
	if c != nil && c.Cluster != nil {
		g.Pods = c.Cluster.Spec.Networks.Pods
	}
	return g
}

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
	return s.m.packets.install(ctx, s.m.setRules, s.want)
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
	s.m.packets.guard = s.commands
	return nil
}

// convergeFirewall installs the firewall of a configuration (nil for none) and the port guard. The
// caller holds m.reconcileMu, or runs before its first holder. The health reports a failure.
func (m *machine) convergeFirewall(ctx context.Context, c *config.Config) error {
	want, guard := firewallConfig(c), guardConfig(c).Commands(nodespec.PodBridge)
	commands := want.Commands(nodespec.PodBridge)
	converge := func(amiss func() bool, op reconcile.Op) error {
		return reconcile.Converge(ctx, reconcile.Config{
			Name: "firewall", Report: m.report,
			Diff: func(context.Context) ([]reconcile.Op, error) {
				if !amiss() {
					return nil, nil
				}
				return []reconcile.Op{op}, nil
			},
		})
	}
	err := errors.Join(
		converge(func() bool { return commands != cmp.Or(m.packets.firewall, firewall.Absent) }, setFirewall{m, want}),
		converge(func() bool { return guard != m.packets.guard }, setGuard{m, guard}),
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
	have, want := firewallConfig(before), firewallConfig(next)
	switch {
	case have.Commands(nodespec.PodBridge) == want.Commands(nodespec.PodBridge):
		return nil
	case want == nil:
		return []string{"accept all connections"}
	}
	return want.Lines()
}
