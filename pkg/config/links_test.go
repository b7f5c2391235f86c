package config

import (
	"strings"
	"testing"
)

// withLink returns a configuration with one link.
func withLink(link string) string {
	return "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker}\n---\napiVersion: orlop.dev/v1alpha1\nkind: Network\nspec:\n  links:\n  - " + link + "\n"
}

// TestGateways checks that a gateway must be reachable on its link: in a network of the link,
// through a route without a gateway, by a link-local address, or by DHCP.
func TestGateways(t *testing.T) {
	for link, want := range map[string]string{
		"{name: eth0, addresses: [203.0.113.7/32], routes: [{to: 172.31.1.1/32}, {to: 0.0.0.0/0, via: 172.31.1.1}]}":            "",
		"{name: eth0, addresses: [203.0.113.7/32], routes: [{to: 0.0.0.0/0, via: 172.31.1.1}, {to: 172.31.1.1/32}]}":            "",
		"{name: eth0, addresses: [203.0.113.7/32], routes: [{to: 172.31.0.0/16}, {to: 0.0.0.0/0, via: 172.31.1.1}]}":            "",
		"{name: eth0, addresses: [203.0.113.7/32], routes: [{to: 0.0.0.0/0}, {to: 10.0.0.0/8, via: 172.31.1.1}]}":               "",
		"{name: eth0, addresses: ['2001:db8::7/128'], routes: [{to: '2001:db8:1::1/128'}, {to: '::/0', via: '2001:db8:1::1'}]}": "",
		"{name: eth0, addresses: ['2001:db8::7/128'], routes: [{to: '::/0', via: 'fe80::1'}]}":                                  "",
		"{name: eth0, dhcp4: true, routes: [{to: 10.0.0.0/8, via: 172.31.1.1}]}":                                                "",
		"{name: eth0, addresses: [203.0.113.7/32], routes: [{to: 0.0.0.0/0, via: 172.31.1.1}]}":                                 "if it is on this link nevertheless, add a route to it: {to: 172.31.1.1/32}",
		"{name: eth0, addresses: [203.0.113.7/32], routes: [{to: 172.31.2.0/24}, {to: 0.0.0.0/0, via: 172.31.1.1}]}":            "is on none of the link's networks",
		// A route with a gateway does not make another gateway reachable: the kernel requires the
		// next hop to be on the link.
		"{name: eth0, addresses: [10.0.0.7/24], routes: [{to: 172.31.1.1/32, via: 10.0.0.1}, {to: 0.0.0.0/0, via: 172.31.1.1}]}": "is on none of the link's networks",
		"{name: eth0, addresses: ['2001:db8::7/128'], routes: [{to: '::/0', via: '2001:db8:1::1'}]}":                             "add a route to it: {to: 2001:db8:1::1/128}",
	} {
		_, problems := Parse("m.yaml", []byte(withLink(link)))
		if got := problems.Error(); want == "" && len(problems) > 0 || !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %q", link, got, want)
		}
	}
}

// TestMadeLinks checks that names of virtual links are rejected with their type, and that names of
// network cards are accepted.
func TestMadeLinks(t *testing.T) {
	for name, want := range map[string]string{
		"bond0": "a bond", "team1": "a team", "eth0.100": "a VLAN of eth0", "enp3s0.7": "a VLAN of enp3s0", "vlan100": "a VLAN", "br0": "a bridge", "wg0": "a WireGuard",
		"dummy0": "a dummy", "tun0": "a tunnel", "bond": "a bond",
		"eth0": "", "eno1": "", "ens18": "", "enp0s31f6": "", "enx001122334455": "", "usb0": "", "ib0": "", "lan.a": "", "brahms": "", "wgate": "", "end0": "", "sfp-1": "",
	} {
		_, problems := Parse("m.yaml", []byte(withLink("{name: "+name+", dhcp4: true}")))
		if got := problems.Error(); (want == "") != (len(problems) == 0) || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %q", name, got, want)
		}
	}
}
