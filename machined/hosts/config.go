package hosts

import "github.com/orlop-os/orlop/pkg/config"

// AcceptsInventories reports whether a configuration (nil for none) lets the machine list waiting
// machines.
func AcceptsInventories(c *config.Config) bool {
	return c.IsControlPlane() && c.HasMachineObjects() && c.Cluster.Spec.Kubernetes.MachineObjects.Inventory
}

// AcceptsClaims reports whether a configuration (nil for none) lets MachineSets claim waiting
// machines.
func AcceptsClaims(c *config.Config) bool {
	return AcceptsInventories(c) && c.Cluster.Spec.Kubernetes.MachineObjects.Claims
}
