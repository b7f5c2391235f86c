package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/release"
)

// TestNodeSpecControlPlanes: a worker knows where API servers are, and a control-plane machine who the other members of etcd are.
func TestNodeSpecControlPlanes(t *testing.T) {
	planes := []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")}
	state := network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.21/24")}}}}}
	for _, role := range []config.Role{config.RoleWorker, config.RoleControlPlane} {
		c := config.New("n1", role).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
		c.Cluster.Spec.ControlPlanes = planes
		spec, err := nodeSpec(c, state, release.Release{})
		if err != nil || !slices.Equal(spec.ControlPlanes, planes) || spec.Endpoint != "https://10.0.0.11:6443" {
			t.Errorf("%s: %v at %s, %v", role, spec.ControlPlanes, spec.Endpoint, err)
		}
	}
}
