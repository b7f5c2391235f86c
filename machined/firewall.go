package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/quorum"
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
	out := &firewall.Config{Open: []firewall.Rule{tcp(paths.PortApid)}, Own: []int{paths.PortApid}}
	var planes []netip.Prefix
	if c.Cluster != nil {
		spec := c.Cluster.Spec
		for _, a := range slices.Concat(spec.ControlPlanes, spec.VirtualAddresses) {
			planes = append(planes, netip.PrefixFrom(a, a.BitLen()))
		}
		out.Own = append(out.Own, paths.PortKubelet)
		members := []int{quorum.ClientPort, quorum.PeerPort, paths.PortMetrics}
		if !worker(c) {
			out.Open = append(out.Open, tcp(paths.PortKubernetes))
			out.Own = append(append(out.Own, paths.PortKubernetes), members...)
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

// otherFamily is everybody with an IPv4 address where the control-plane machines are named by IPv6 and there is IPv4, too: a Node's first address,
// by which API servers ask its kubelet, is then IPv4 (network.State.NodeAddresses), and by which of theirs they come the documents do not say.
func otherFamily(spec config.ClusterSpec) []netip.Prefix {
	is4 := func(r netip.Prefix) bool { return r.Addr().Is4() }
	if slices.ContainsFunc(spec.ControlPlanes, netip.Addr.Is4) || !slices.ContainsFunc(spec.Networks.Pods, is4) {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
}

// setFirewall is the operation that gives the kernel a table, or takes it away.
type setFirewall struct {
	m        *machine
	want     *firewall.Config
	commands string // that bring it about
}

func (s setFirewall) String() string {
	if s.want == nil {
		return "let in everything"
	}
	return fmt.Sprintf("let in what %d rules say, and refuse the rest", len(s.want.Lines())-1)
}

// Do is all or nothing: nft(8) gives the kernel one transaction.
func (s setFirewall) Do(ctx context.Context) error {
	if err := s.m.setRules(ctx, s.commands, "nft_reject_inet"); err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	s.m.firewall = s.commands
	return nil
}

// convergeFirewall has the kernel let in what a configuration (nil for none) says. Its callers hold m.settling, or come before who does. What
// is in force is remembered, not read: nobody else has to do with the table.
func (m *machine) convergeFirewall(ctx context.Context, c *config.Config) error {
	want := firewallConfig(c)
	commands := want.Commands(nodespec.PodBridge)
	return reconcile.Converge(ctx, reconcile.Config{
		Name: "firewall", Report: m.report,
		Diff: func(context.Context) ([]reconcile.Op, error) {
			if commands == cmp.Or(m.firewall, firewall.Absent) {
				return nil, nil
			}
			return []reconcile.Op{setFirewall{m, want, commands}}, nil
		},
	})
}

// firewallDryRun says what another configuration would have the kernel let in, if that is something else.
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
