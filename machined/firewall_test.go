package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestFirewallConfig: an empty firewall lets in what machines of each role need, as far as the documents know who has to come.
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
	const all, some = " from everybody", " from 10.0.0.11/32, 10.0.0.12/32, 10.0.0.11/32"
	const rest = "refuse everything else that others begin"
	alone := config.New("m", config.RoleWorker)
	alone.Network.Spec.Firewall = &config.Firewall{Allow: []config.FirewallRule{{Port: 50000, Protocol: config.TransportTCP, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	for name, test := range map[string]struct {
		c    *config.Config
		want []string
	}{
		"none":                  {config.New("m", config.RoleWorker), nil},
		"nothing":               {nil, nil},
		"a machine for itself":  {alone, []string{"let in tcp port 50000 from 192.0.2.0/24", rest}},
		"a control plane alone": {of(config.RoleControlPlane, nil, config.EncapsulationWireGuard), []string{"let in tcp port 50000" + all, "let in tcp port 6443" + all, "let in udp port 51820" + all, rest}},
		"one of several": {of(config.RoleControlPlane, planes, config.EncapsulationVXLAN), []string{
			"let in tcp port 50000" + all, "let in tcp port 6443" + all, "let in tcp port 10250" + some, "let in tcp port 2379" + some, "let in tcp port 2380" + some,
			"let in tcp port 10261" + some, "let in udp port 8472" + all, rest,
		}},
		"a worker": {of(config.RoleWorker, planes, config.EncapsulationNone), []string{
			"let in tcp port 50000" + all, "let in tcp port 10250" + some, rest,
		}},
		"a worker whose control plane is named by IPv6": {of(config.RoleWorker, []netip.Addr{netip.MustParseAddr("2001:db8::11")}, config.EncapsulationNone), []string{
			"let in tcp port 50000" + all, "let in tcp port 10250 from 2001:db8::11/128, 2001:db8::11/128, 0.0.0.0/0", rest,
		}},
		"a worker of one": {of(config.RoleWorker, nil, config.EncapsulationWireGuard), []string{"let in tcp port 50000" + all, "let in tcp port 10250" + all, "let in udp port 51820" + all, rest}},
	} {
		if got := firewallConfig(test.c).Lines(); !slices.Equal(got, test.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, test.want)
		}
	}
	if got := firewallDryRun(alone, config.New("m", config.RoleWorker)); !slices.Equal(got, []string{"let in everything"}) {
		t.Errorf("without one: %q", got)
	}
	if got := firewallDryRun(alone, alone); got != nil {
		t.Errorf("the same: %q", got)
	}
}
