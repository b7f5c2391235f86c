package config

import (
	"crypto/ecdh"
	"encoding/base64"
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
		// No router has the network or broadcast address.
		"{name: eth0, addresses: [10.0.0.7/24], routes: [{to: 0.0.0.0/0, via: 10.0.0.255}]}":              "10.0.0.255 is the network or broadcast address",
		"{name: eth0, addresses: [10.0.0.7/24], routes: [{to: 0.0.0.0/0, via: 10.0.0.0}]}":                "10.0.0.0 is the network or broadcast address",
		"{name: eth0, addresses: [10.0.0.7/24, 10.0.0.9/23], routes: [{to: 0.0.0.0/0, via: 10.0.1.255}]}": "10.0.1.255 is the network or broadcast address",
		"{name: eth0, addresses: [10.0.0.7/23], routes: [{to: 0.0.0.0/0, via: 10.0.0.255}]}":              "",
		"{name: eth0, addresses: [192.0.2.1/31], routes: [{to: 0.0.0.0/0, via: 192.0.2.0}]}":              "",
		"{name: eth0, addresses: ['2001:db8::7/64'], routes: [{to: '::/0', via: '2001:db8::'}]}":          "",
		// A gateway must not be reachable only through another gateway, because the kernel requires
		// the next hop to be on the link.
		"{name: eth0, addresses: [10.0.0.7/24], routes: [{to: 172.31.1.1/32, via: 10.0.0.1}, {to: 0.0.0.0/0, via: 172.31.1.1}]}": "is on none of the link's networks",
		"{name: eth0, addresses: ['2001:db8::7/128'], routes: [{to: '::/0', via: '2001:db8:1::1'}]}":                             "add a route to it: {to: 2001:db8:1::1/128}",
	} {
		_, problems := Parse("m.yaml", []byte(withLink(link)))
		if got := problems.Error(); want == "" && len(problems) > 0 || !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %q", link, got, want)
		}
	}
}

// TestMadeLinks checks that Parse rejects a name that looks like that of a virtual link, and states
// the type of this link. It also checks that Parse accepts the names of network cards.
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

// withNetwork returns a configuration with the fields of Network.spec.
func withNetwork(spec string) string {
	return "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker}\n---\napiVersion: orlop.dev/v1alpha1\nkind: Network\nspec: {" + spec + "}\n"
}

const (
	testPrivateKey = "MNDZl4pnrcJpdDcGk39cBfKRuiYzOPQLsrjINQqMPnU="
	testPeerKey    = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
)

// TestStacks checks combinations of links. Each entry maps the fields of Network.spec to a part of
// the expected problem, or to "" for a valid configuration.
func TestStacks(t *testing.T) {
	tunnel := func(name, port, peer string) string {
		return "{name: " + name + ", wireguard: {privateKey: " + testPrivateKey + ", listenPort: " + port + ", peers: [{publicKey: " + testPeerKey + ", " + peer + "}]}}"
	}
	for spec, want := range map[string]string{
		// Two links can have the same link-local address. Links in different VRFs can have the same
		// address of any kind.
		"links: [{name: eth0, addresses: ['fe80::1/64']}, {name: eth1, addresses: ['fe80::1/64']}]":                                                                             "",
		"links: [{name: eth0, addresses: ['fe80::1/64', 'fe80::1/64']}]":                                                                                                        "fe80::1 is also in Network.spec.links[0].addresses[0]",
		"links: [{name: eth0, addresses: [10.0.0.5/24]}, {name: eth1, addresses: [10.0.0.5/24]}, {name: red, vrf: {table: 100, members: [eth1]}}]":                              "",
		"links: [{name: eth0, addresses: [10.0.0.5/24]}, {name: eth1, addresses: [10.0.0.5/24]}, {name: red, vrf: {table: 100, members: [eth1, eth0]}}]":                        "10.0.0.5 is also in Network.spec.links[0].addresses[0]",
		"links: [{name: eth0, addresses: [10.0.0.5/24]}, {name: red, vrf: {table: 100}, addresses: [10.0.0.5/24]}]":                                                             "",
		"links: [{name: eth0, addresses: ['fe80::1/64']}, {name: eth1}], routes: [{to: 2001:db8::/32, nextHops: [{link: eth1, via: 'fe80::1'}, {link: eth1, via: 'fe80::2'}]}]": "",
		"links: [{name: eth0}, {name: eth1, addresses: ['fe80::1/64']}], routes: [{to: 2001:db8::/32, nextHops: [{link: eth1, via: 'fe80::1'}, {link: eth1, via: 'fe80::2'}]}]": "fe80::1 is the machine's own address",
		"links: [{name: 'vlan%d', vlan: {parent: eth0, id: 5}}]":                                                                                                                `"vlan%d" is not the name of a link`,
		"links: [{name: bonding_masters, dummy: true}]":                                                                                                                         `"bonding_masters" is a file of the kernel`,
		"links: [{name: 'eth*', dhcp4: true}]":                                      "expected one name, or a pattern in match.name",
		"links: [{match: {name: 'eth[^0]'}, dhcp4: true}]":                          `"eth[^0]"`,
		"links: [{name: bond0, bond: {mode: active-backup, members: ['eth[^0]']}}]": `"eth[^0]"`,
		"links: [{name: dummy0, dummy: true, dhcp4: true}]":                         "a dummy has no DHCP",
		// A VLAN has at most the MTU of its parent, and by default the same MTU. The MTU that a
		// driver or a lease sets is unknown.
		"links: [{name: eth0, mtu: 1500}, {name: eth0.5, vlan: {parent: eth0, id: 5}, mtu: 9000}]":                                                                                             "is larger than the MTU 1500 of eth0",
		"links: [{name: eth0.5, vlan: {parent: eth0, id: 5}, mtu: 9000}, {name: eth0, mtu: 9000}]":                                                                                             "",
		"links: [{name: eth0.5, vlan: {parent: eth0, id: 5}, mtu: 9000}]":                                                                                                                      "",
		"links: [{name: bond0.5, vlan: {parent: bond0, id: 5}, mtu: 9000}, {name: bond0, bond: {mode: active-backup, members: [eth0]}}]":                                                       "is larger than the MTU 1500 of bond0",
		"links: [{name: bond0.5, vlan: {parent: bond0, id: 5}, mtu: 9000}, {name: bond0, bond: {mode: active-backup, members: [eth0]}, dhcp4: true}]":                                          "",
		"links: [{name: q, vlan: {parent: bond0.5, id: 7}, mtu: 9000}, {name: bond0.5, vlan: {parent: bond0, id: 5}}, {name: bond0, mtu: 1400, bond: {mode: active-backup, members: [eth0]}}]": "is larger than the MTU 1400 of bond0.5",
		"links: [{name: eth0, mtu: 1200}, {name: eth0.5, vlan: {parent: eth0, id: 5}, addresses: ['2001:db8::5/64']}]":                                                                         "the MTU 1200 of eth0",
		"links: [{name: eth0, mtu: 1200}, {name: eth0.5, vlan: {parent: eth0, id: 5}, addresses: [10.0.0.5/24]}]":                                                                              "",
		"links: [{name: a, bond: {mode: active-backup, members: [b]}}, {name: b, bond: {mode: active-backup, members: [eth0]}}]":                                                               "a bond cannot belong to a bond",
		"links: [{name: a, bond: {mode: active-backup, members: [b]}}, {name: b, vlan: {parent: eth0, id: 5}}]":                                                                                "",
		// WireGuard.
		"links: [" + tunnel("wg0", "51821", "allowedIPs: [10.1.0.0/16]") + ", " + tunnel("wg1", "51822", "allowedIPs: [10.1.0.0/16]") + "]":                                    "",
		"links: [" + tunnel("wg0", "51821", "allowedIPs: [10.1.0.0/16]") + ", " + tunnel("wg1", "51821", "allowedIPs: [10.1.0.0/16]") + "]":                                    "UDP port 51821 is also in Network.spec.links[0].wireguard.listenPort",
		"links: [" + tunnel("wg0", "51821", "allowedIPs: []") + "]":                                                                                                            "allowedIPs: is empty",
		"links: [" + tunnel("wg0", "51821", "endpoint: '0.0.0.0:51821', allowedIPs: [10.1.0.0/16]") + "]":                                                                      "cannot be the address of a peer",
		"links: [" + tunnel("wg0", "51821", "endpoint: '[fe80::1]:51821', allowedIPs: [10.1.0.0/16]") + "]":                                                                    "cannot be the address of a peer",
		"links: [{name: wg0, wireguard: {privateKey: " + testPrivateKey + ", listenPort: 51821, peers: [{publicKey: '$OWN', allowedIPs: [10.1.0.0/16]}]}}]":                    "the public key of privateKey",
		"links: [{name: wg0, wireguard: {privateKey: " + testPrivateKey + ", listenPort: 51821}, routes: [{to: 10.50.0.0/16}]}, {name: eth0, addresses: [10.0.0.5/24]}]":       "",
		"links: [{name: eth0, addresses: [10.0.0.5/24]}, {name: eth1}], routes: [{to: 10.9.0.0/16, nextHops: [{link: eth0, via: 10.0.0.255}, {link: eth1, via: 10.0.1.255}]}]": "Network.spec.routes[0].nextHops[0].via: 10.0.0.255 is the network or broadcast address",
		// The kernel has each route and each rule only once. Two items that differ only in an
		// explicit default are the same.
		"routes: [{to: 10.0.0.0/8, type: blackhole}, {to: 10.0.0.0/8, type: prohibit, metric: 512}]":                     "10.0.0.0/8 with metric 512 is also in routes[0]",
		"rules: [{priority: 5, from: 10.0.0.0/8, table: 100}, {priority: 5, from: 10.1.0.0/16, table: 200}]":             "the same priority as rules[0]",
		"rules: [{priority: 5, from: 10.0.0.0/16, table: 100}, {priority: 5, from: 10.1.0.0/16, table: 200}]":            "",
		"rules: [{priority: 5, from: 10.0.0.0/8, table: 100}, {priority: 5, from: 'fd00::/8', table: 200}]":              "",
		"rules: [{priority: 5, incoming: eth0, table: 100}, {priority: 5, incoming: eth1, table: 200}]":                  "",
		"rules: [{priority: 5, mark: 1, table: 100}, {priority: 5, mark: 2, table: 200}]":                                "",
		"rules: [{priority: 5, mark: 1, table: 100}, {priority: 5, to: 10.0.0.0/8, table: 200}]":                         "the same priority as rules[0]",
		"rules: [{priority: 5, mark: 1, table: 100}, {priority: 5, to: 10.0.0.0/8, table: 100}]":                         "",
		"rules: [{priority: 5, from: 0.0.0.0/0, table: 100}, {priority: 5, from: 0.0.0.0/0, to: 0.0.0.0/0, table: 100}]": "the same rule is given twice",
		"rules: [{priority: 5, from: '::ffff:10.0.0.0/104', table: 100}]":                                                "IPv4",
	} {
		spec = strings.ReplaceAll(spec, "$OWN", ownKey(t))
		_, problems := Parse("m.yaml", []byte(withNetwork(spec)))
		if got := problems.Error(); want == "" && len(problems) > 0 || !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %q", spec, got, want)
		}
		if strings.Contains(problems.Error(), testPrivateKey) {
			t.Errorf("the problems show a private key: %s", problems)
		}
	}
}

// ownKey returns the public key of testPrivateKey.
func ownKey(t *testing.T) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(testPrivateKey)
	check(t, err)
	private, err := ecdh.X25519().NewPrivateKey(key)
	check(t, err)
	return base64.StdEncoding.EncodeToString(private.PublicKey().Bytes())
}
