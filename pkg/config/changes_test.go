package config

import (
	"net/netip"
	"slices"
	"testing"
)

func TestChanges(t *testing.T) {
	ref := example(t)
	pki := ref.Cluster.Spec.PKI
	base := func() *Config {
		return New("a", RoleControlPlane).WithNetwork(NetworkSpec{Links: []Link{{Name: "eth0", MTU: 1500, DHCP4: true}}})
	}
	with := func(c *Config, change func(*Config)) *Config {
		d := *c
		d.Network.Spec.Links = slices.Clone(c.Network.Spec.Links)
		change(&d)
		return &d
	}
	clustered := base().WithCluster("c", Endpoint{"h", 6443}, pki, ref.Cluster.Spec.SecretsEncryptionKey)
	tests := []struct {
		name          string
		before, after *Config
		want          []string
	}{
		{"no change", base(), base(), nil},
		{"no configuration", nil, nil, nil},
		{"first configuration", nil, base(), []string{
			"Machine.metadata.name: (none) → a", "Machine.spec.role: (none) → controlplane", "Machine.spec.reserved.memory: (none) → 512MiB",
			"Machine.spec.reserved.cpu: (none) → 200m", "Machine.spec.disk.wipeForeign: (none) → false", "Machine.spec.upgrade.deadline: (none) → 5m",
			"Machine.spec.upgrade.drain.policy: (none) → none", "Machine.spec.upgrade.drain.timeout: (none) → 5m", "Network.metadata.name: (none) → default",
			"Network.spec.links[0].name: (none) → eth0", "Network.spec.links[0].mtu: (none) → 1500", "Network.spec.links[0].dhcp4: (none) → true", "Network.spec.links[0].dummy: (none) → false", "Network.spec.lldp.announce: (none) → false",
		}},
		{"a number", base(), with(base(), func(c *Config) { c.Network.Spec.Links[0].MTU = 9000 }), []string{"Network.spec.links[0].mtu: 1500 → 9000"}},
		{"back to the default", base(), with(base(), func(c *Config) { c.Network.Spec.Links[0].MTU = 0 }), []string{"Network.spec.links[0].mtu: 1500 → (none)"}},
		{"lists", base(), with(base(), func(c *Config) {
			c.Network.Spec.Links[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}
			c.Network.Spec.Links = append(c.Network.Spec.Links, Link{MAC: "52:54:00:00:00:01"})
		}), []string{
			"Network.spec.links[0].addresses[0]: (none) → 10.0.0.1/8",
			"Network.spec.links[1].mac: (none) → 52:54:00:00:00:01", "Network.spec.links[1].dhcp4: (none) → false", "Network.spec.links[1].dummy: (none) → false",
		}},
		{"a block without fields", base(), with(base(), func(c *Config) { c.Network.Spec.Firewall = &Firewall{} }), []string{"Network.spec.firewall: (none) → {}"}},
		{"a block without fields is removed", with(base(), func(c *Config) { c.Network.Spec.Firewall = &Firewall{} }), base(), []string{"Network.spec.firewall: {} → (none)"}},
		{"maps", with(base(), func(c *Config) { c.Machine.Spec.Sysctls = map[string]string{"vm.b": "1", "vm.c": "1"} }),
			with(base(), func(c *Config) { c.Machine.Spec.Sysctls = map[string]string{"vm.a": "x\ny", "vm.b": "2"} }), []string{
				`Machine.spec.sysctls["vm.a"]: (none) → "x\ny"`, `Machine.spec.sysctls["vm.b"]: 1 → 2`, `Machine.spec.sysctls["vm.c"]: 1 → (none)`,
			}},
		{"empty values of maps", base().WithNode(Node{Labels: map[string]string{"a": "", "b": "", "c": "x"}}),
			base().WithNode(Node{Labels: map[string]string{"b": "x", "c": "", "d": ""}}), []string{
				`Machine.spec.node.labels["a"]: "" → (none)`, `Machine.spec.node.labels["b"]: "" → x`, `Machine.spec.node.labels["c"]: x → ""`, `Machine.spec.node.labels["d"]: (none) → ""`,
			}},
		{"secrets and certificates", clustered, with(clustered, func(c *Config) {
			cluster := *c.Cluster
			cluster.Spec.SecretsEncryptionKey = NewEncryptionKey([32]byte{1})
			cluster.Spec.PKI.Etcd.Key = PrivateKey{}
			cluster.Spec.PKI.Kubernetes.Cert = pki.Etcd.Cert
			c.Cluster = &cluster
		}), []string{
			"Cluster.spec.pki.kubernetes.cert: " + pki.Kubernetes.Cert.String() + " → " + pki.Etcd.Cert.String(),
			"Cluster.spec.pki.etcd.key: (removed)",
			"Cluster.spec.secretsEncryptionKey: (changed)",
		}},
		{"a new block behind a pointer", clustered, with(clustered, func(c *Config) {
			cluster := *c.Cluster
			cluster.Spec.Kubernetes.Authentication.Webhook = &AuthenticationWebhook{URL: "https://w", CacheTTL: 0, Client: &CertKey{Key: pki.Etcd.Key}}
			c.Cluster = &cluster
		}), []string{
			"Cluster.spec.kubernetes.authentication.webhook.url: (none) → https://w",
			"Cluster.spec.kubernetes.authentication.webhook.client.key: (added)",
			"Cluster.spec.kubernetes.authentication.webhook.cacheTTL: (none) → 0s",
		}},
	}
	for _, test := range tests {
		if got := Changes(test.before, test.after); !slices.Equal(got, test.want) {
			t.Errorf("%s:\n got %q\nwant %q", test.name, got, test.want)
		}
		if Equal(test.before, test.after) != (len(test.want) == 0) {
			t.Errorf("%s: Equal contradicts Changes", test.name)
		}
	}
}
