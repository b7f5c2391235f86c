package hosts

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestAcceptsInventories checks that only a control-plane machine accepts inventories, and only if
// machine objects and the inventory are both enabled.
func TestAcceptsInventories(t *testing.T) {
	c := func(role config.Role, objects, inventories bool) *config.Config {
		c := config.New("a", role)
		c.Cluster = &config.Cluster{}
		c.Cluster.Spec.Kubernetes.MachineObjects = config.MachineObjects{Enabled: objects, Inventory: inventories}
		return c
	}
	for _, test := range []struct {
		c    *config.Config
		want bool
	}{
		{nil, false},
		{c(config.RoleControlPlane, true, true), true},
		{c(config.RoleControlPlane, false, true), false},
		{c(config.RoleControlPlane, true, false), false},
		{c(config.RoleWorker, true, true), false},
	} {
		if got := AcceptsInventories(test.c); got != test.want {
			t.Errorf("%+v: %t", test.c, got)
		}
	}
}

// TestAcceptsClaims checks that a control-plane machine accepts claims if the inventory and claims
// are both enabled.
func TestAcceptsClaims(t *testing.T) {
	for _, objects := range []config.MachineObjects{{}, {Enabled: true, Inventory: true}, {Enabled: true, Claims: true}, {Enabled: true, Inventory: true, Claims: true}} {
		c := config.New("a", config.RoleControlPlane)
		c.Cluster = &config.Cluster{}
		c.Cluster.Spec.Kubernetes.MachineObjects = objects
		if got, want := AcceptsClaims(c), objects.Inventory && objects.Claims; got != want {
			t.Errorf("%+v: %t", objects, got)
		}
	}
}
