package nodeplan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestFirewallConfig checks that a firewall without configured rules admits the traffic that
// machines of each role need. If the documents list the addresses of the senders, it admits the
// traffic only from these addresses, otherwise from all networks.
func TestFirewallConfig(t *testing.T) {
	planes := []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")}
	of := func(role config.Role, controlPlanes []netip.Addr, way config.Encapsulation) *config.Config {
		c := config.New("m", role)
		c.Network.Spec.Firewall = &config.Firewall{}
		c.Cluster = &config.Cluster{Spec: config.ClusterSpec{
			ControlPlanes: controlPlanes, VirtualAddresses: controlPlanes[:min(len(controlPlanes), 1)],
			Networks: config.ClusterNetworks{Encapsulation: way, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		}}
		return c
	}
	const all, some = " from all networks", " from 10.0.0.11/32, 10.0.0.12/32, 10.0.0.11/32"
	const rest = "reject all other new connections"
	alone := config.New("m", config.RoleWorker)
	alone.Network.Spec.Firewall = &config.Firewall{Allow: []config.FirewallRule{{Port: 50000, Protocol: config.TransportTCP, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	for name, test := range map[string]struct {
		c    *config.Config
		want []string
	}{
		"no firewall":                 {config.New("m", config.RoleWorker), nil},
		"no configuration":            {nil, nil},
		"a machine without a cluster": {alone, []string{"accept tcp port 50000 from 192.0.2.0/24", rest}},
		"a control-plane machine, no list of control planes": {of(config.RoleControlPlane, nil, config.EncapsulationWireGuard), []string{"accept tcp port 50000" + all, "accept tcp port 6443" + all, "accept udp port 51820" + all, rest}},
		"a control-plane machine": {of(config.RoleControlPlane, planes, config.EncapsulationVXLAN), []string{
			"accept tcp port 50000" + all, "accept tcp port 6443" + all, "accept tcp port 10250" + some, "accept tcp port 2379" + some, "accept tcp port 2380" + some,
			"accept tcp port 10261" + some, "accept udp port 8472" + all, rest,
		}},
		"a worker": {of(config.RoleWorker, planes, config.EncapsulationNone), []string{
			"accept tcp port 50000" + all, "accept tcp port 10250" + some, rest,
		}},
		"a worker, a list with an IPv6 address only": {of(config.RoleWorker, []netip.Addr{netip.MustParseAddr("2001:db8::11")}, config.EncapsulationNone), []string{
			"accept tcp port 50000" + all, "accept tcp port 10250 from 2001:db8::11/128, 2001:db8::11/128, 0.0.0.0/0", rest,
		}},
		"a worker, no list of control planes": {of(config.RoleWorker, nil, config.EncapsulationWireGuard), []string{"accept tcp port 50000" + all, "accept tcp port 10250" + all, "accept udp port 51820" + all, rest}},
	} {
		if got := Firewall(test.c).Lines(); !slices.Equal(got, test.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, test.want)
		}
	}
}

// TestGuardConfig checks that Services and pods cannot take the ports of the machine, and that pods
// cannot reach closed ports. It covers machines without a configuration, without a cluster, and
// workers.
func TestGuardConfig(t *testing.T) {
	c := config.New("m", config.RoleWorker)
	c.Cluster = &config.Cluster{Spec: config.ClusterSpec{Networks: config.ClusterNetworks{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}}
	for name, test := range map[string]struct {
		c    *config.Config
		pods bool
	}{"no configuration": {nil, false}, "no cluster": {config.New("m", config.RoleWorker), false}, "a worker": {c, true}} {
		text := Guard(test.c).Commands("cni0")
		for _, part := range []string{
			"tcp dport { 2379, 2380, 6443, 10250, 10261, 10262, 50000, 6444, 10248, 10249, 10256, 10257, 10259, 10263 } fib daddr type local dnat ip to ip daddr",
			`iifname "cni0" tcp dport { 2379, 2380, 10261, 50000 } counter reject`,
		} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in\n%s", name, part, text)
			}
		}
		if strings.Contains(text, "ip saddr { 10.244.0.0/16 } tcp dport { 2379, 2380, 10261, 50000 }") != test.pods {
			t.Errorf("%s: the rule for the pod range is missing or unexpected:\n%s", name, text)
		}
	}
}
