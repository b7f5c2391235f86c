package nodeplan

import (
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Firewall returns the firewall of a configuration (nil for none). It returns nil if no firewall is
// configured: the machine then admits all packets.
func Firewall(c *config.Config) *firewall.Config {
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
		if !c.IsWorker() {
			out.Open = append(out.Open, tcp(paths.PortKubernetes))
			out.SystemPorts = append(append(out.SystemPorts, paths.PortKubernetes), members...)
		}
		switch {
		case len(planes) > 0:
			out.Open = append(out.Open, tcp(paths.PortKubelet, slices.Concat(planes, otherFamily(spec))...))
		case c.IsWorker(): // The documents do not contain the addresses of the control plane.
			out.Open = append(out.Open, tcp(paths.PortKubelet))
		}
		if !c.IsWorker() && len(planes) > 0 {
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
	if m := c.Machine.Spec.Metrics; m != nil {
		out.Open = append(out.Open, tcp(paths.PortMetricsd, m.From...))
		out.SystemPorts = append(out.SystemPorts, paths.PortMetricsd)
	}
	var rules []firewall.Rule
	for _, r := range c.Network.Spec.Firewall.Allow {
		rules = append(rules, firewall.Rule{Protocol: string(r.Protocol), Port: r.Port, From: r.From})
	}
	out.Open = firewall.Allow(out.Open, rules, planes)
	return out
}

// otherFamily returns the network of all IPv4 addresses if the configured control-plane addresses
// are IPv6 only and the cluster also has IPv4. API servers then connect to a kubelet at the first
// address of its Node, which is an IPv4 address (network.State.NodeAddresses). The documents do not
// contain the IPv4 addresses from which API servers connect, so the firewall has to admit all of
// them.
func otherFamily(spec config.ClusterSpec) []netip.Prefix {
	is4 := func(r netip.Prefix) bool { return r.Addr().Is4() }
	if slices.ContainsFunc(spec.ControlPlanes, netip.Addr.Is4) || !slices.ContainsFunc(spec.Networks.Pods, is4) {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
}

// Guard returns the ports that the port guard protects with the configuration c (nil for none):
// ports that no Service and no pod can take, and ports that pods cannot reach.
func Guard(c *config.Config) firewall.Guard {
	g := firewall.Guard{TCP: nodespec.MachineTCP(), UDP: nodespec.MachineUDP(), Loopback: nodespec.LoopbackTCP(), Closed: nodespec.ClosedToPods()}
	if c != nil && c.Cluster != nil {
		g.Pods = c.Cluster.Spec.Networks.Pods
	}
	return g
}
