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

// firewallConfig is what a configuration has the kernel let in; nil: everything.
func firewallConfig(c *config.Config) *firewall.Config {
	if c == nil || c.Network.Spec.Firewall == nil {
		return nil
	}
	tcp := func(port int, from ...netip.Prefix) firewall.Rule {
		return firewall.Rule{Protocol: string(config.TransportTCP), Port: port, From: from}
	}
	out := &firewall.Config{Open: []firewall.Rule{tcp(paths.PortApid)}, MachineNetworks: []int{paths.PortApid}}
	var planes []netip.Prefix
	if c.Cluster != nil {
		spec := c.Cluster.Spec
		for _, a := range slices.Concat(spec.ControlPlanes, spec.VirtualAddresses) {
			planes = append(planes, netip.PrefixFrom(a, a.BitLen()))
		}
		out.MachineNetworks = append(out.MachineNetworks, paths.PortKubelet)
		members := []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortMetrics}
		if !worker(c) {
			out.Open = append(out.Open, tcp(paths.PortKubernetes))
			out.MachineNetworks = append(append(out.MachineNetworks, paths.PortKubernetes), members...)
		}
		switch {
		case len(planes) > 0:
			out.Open = append(out.Open, tcp(paths.PortKubelet, slices.Concat(planes, otherFamily(spec))...))
		case worker(c): // where its control plane asks from is known to nobody
			out.Open = append(out.Open, tcp(paths.PortKubelet))
		}
		if !worker(c) && len(planes) > 0 {
			for _, port := range members {
				out.Open = append(out.Open, tcp(port, planes...))
			}
		}
		switch spec.Networks.Encapsulation {
		case config.EncapsulationWireGuard:
			out.Open = append(out.Open, firewall.Rule{Protocol: string(config.TransportUDP), Port: paths.PortWireGuard})
		case config.EncapsulationVXLAN:
			out.Open = append(out.Open, firewall.Rule{Protocol: string(config.TransportUDP), Port: paths.PortVXLAN})
		case config.EncapsulationNone: // packets between pods are not for the machine
		}
	}
	var rules []firewall.Rule
	for _, r := range c.Network.Spec.Firewall.Allow {
		rules = append(rules, firewall.Rule{Protocol: string(r.Protocol), Port: r.Port, From: r.From})
	}
	out.Open = firewall.Allow(out.Open, rules, planes)
	return out
}

// otherFamily is everybody with an IPv4 address where the control-plane machines are named by IPv6
// and there is IPv4, too: a Node's first address, by which API servers ask its kubelet, is then
// IPv4 (network.State.NodeAddresses), and by which of theirs they come the documents do not say.
func otherFamily(spec config.ClusterSpec) []netip.Prefix {
	is4 := func(r netip.Prefix) bool { return r.Addr().Is4() }
	if slices.ContainsFunc(spec.ControlPlanes, netip.Addr.Is4) || !slices.ContainsFunc(spec.Networks.Pods, is4) {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
}

// guardConfig is what no Service and no pod takes of the machine, whatever its configuration (nil
// for none) says.
func guardConfig(c *config.Config) firewall.Guard {
	g := firewall.Guard{TCP: nodespec.MachineTCP(), UDP: nodespec.MachineUDP(), Loopback: nodespec.LoopbackTCP(), Closed: nodespec.ClosedToPods()}
	if c != nil && c.Cluster != nil {
		g.Pods = c.Cluster.Spec.Networks.Pods
	}
	return g
}

// packetRules is what the kernel was given of packet rules. It is remembered, not read: nobody else
// has to do with the tables.
type packetRules struct {
	firewall string // the commands of the firewall's table; empty: none were given
	guard    string // those of the guard's
	// the cluster's services have been started: what was in force then goes on if other rules fail
	begun bool
}

// setRules gives the kernel commands of nft(8), all of them or none; modules are what they need.
type setRules func(ctx context.Context, commands string, modules ...string) error

// put gives the kernel a firewall. If it takes none although one is wanted, nobody begins anything
// with the machine but callers of its own API, as long as nothing of the cluster has been started;
// after that the rules of before stay.
func (r *packetRules) put(ctx context.Context, set setRules, want *firewall.Config) error {
	commands := want.Commands(nodespec.PodBridge)
	err := set(ctx, commands, "nft_reject_inet")
	switch {
	case err == nil:
		r.firewall = commands
		return nil
	case want == nil || r.begun || r.firewall != "":
		return fmt.Errorf("firewall: %w; the rules of before stay, and it is tried again", err)
	}
	closed := firewall.DropElement(paths.PortApid)
	if last := set(ctx, closed); last != nil {
		return fmt.Errorf("firewall: %w; the kernel takes no other rules either (%w): the cluster's services wait, and it is tried again", err, last)
	}
	r.firewall = closed
	return fmt.Errorf("firewall: %w; until it is in force nobody reaches more of the machine than port %d, and it is tried again", err, paths.PortApid)
}

// exposed says that a firewall is wanted, and the kernel has no rules at all in its place.
func (r *packetRules) exposed(want *firewall.Config) bool {
	return want != nil && r.firewall == "" && !r.begun
}

// setFirewall is the operation that gives the kernel a table, or takes it away.
type setFirewall struct {
	m    *machine
	want *firewall.Config
}

func (s setFirewall) String() string {
	if s.want == nil {
		return "let in everything"
	}
	return fmt.Sprintf("let in what %d rules say, and refuse the rest", len(s.want.Lines())-1)
}

// Do is all or nothing: nft(8) gives the kernel one transaction.
func (s setFirewall) Do(ctx context.Context) error { return s.m.packets.put(ctx, s.m.setRules, s.want) }

// setGuard is the operation that keeps Services and pods from the machine's own ports.
type setGuard struct {
	m        *machine
	commands string
}

func (setGuard) String() string { return "keep Services and pods from the machine's own ports" }

// Do is all or nothing, as setFirewall's.
func (s setGuard) Do(ctx context.Context) error {
	if err := s.m.setRules(ctx, s.commands, "nft_chain_nat", "nft_nat", "nft_fib_inet", "nft_reject_inet"); err != nil {
		return fmt.Errorf("the machine's own ports: Services and pods are not kept from them: %w; it is tried again", err)
	}
	s.m.packets.guard = s.commands
	return nil
}

// convergeFirewall has the kernel let in what a configuration (nil for none) says, and keep
// Services and pods from the machine's own ports. Its callers hold m.settling, or come before who
// does. What is not in force health tells.
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
	m.noRules.Set(problem)
	return err
}

// firewallDryRun says what another configuration would have the kernel let in, if that is something
// else.
func firewallDryRun(before, next *config.Config) []string {
	have, want := firewallConfig(before), firewallConfig(next)
	switch {
	case have.Commands(nodespec.PodBridge) == want.Commands(nodespec.PodBridge):
		return nil
	case want == nil:
		return []string{"let in everything"}
	}
	return want.Lines()
}
