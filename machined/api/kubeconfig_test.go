package api

import (
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestKubernetesURL checks that a kubeconfig uses the first virtual address, else the endpoint.
func TestKubernetesURL(t *testing.T) {
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "k8s.example", Port: 443}, config.PKI{}, config.EncryptionKey{})
	for _, test := range []struct {
		addresses []netip.Addr
		url       string
	}{
		{nil, "https://k8s.example:443"},
		{[]netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("2001:db8::9")}, "https://10.0.0.9:6443"},
		{[]netip.Addr{netip.MustParseAddr("2001:db8::9")}, "https://[2001:db8::9]:6443"},
	} {
		c.Cluster.Spec.VirtualAddresses = test.addresses
		if got := kubernetesURL(c.Cluster.Spec); got != test.url {
			t.Errorf("%v: kubeconfig files name %s, want %s", test.addresses, got, test.url)
		}
	}
}
