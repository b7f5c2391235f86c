package disruption

import (
	"context"
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// Machine is the machine in its cluster.
type Machine struct {
	disruption.Machine
	// Address is the address by which operators call the machine.
	Address string
	// InCluster reports whether the machine is part of a cluster: it has a Cluster document and was
	// not removed.
	InCluster bool
}

// Facts are the facts from which Describe derives a Machine.
type Facts struct {
	Config     *config.Config // active; nil if there is none
	InMemory   bool           // the system is not installed
	Kubernetes string         // version of the running image, with a leading v
	Others     bool           // the machine knows other machines of its cluster
	// Joined and Removed are the membership of a worker.
	Joined, Removed bool
	Addresses       []netip.Addr // all addresses of the machine
}

// Describe returns the machine in its cluster; the zero Machine if it has no cluster.
func Describe(f Facts) Machine {
	c := f.Config
	if c == nil || c.Cluster == nil || f.InMemory {
		return Machine{}
	}
	out := Machine{
		Machine:   disruption.Machine{Name: c.Machine.Metadata.Name, ControlPlane: c.IsControlPlane(), Kubernetes: f.Kubernetes, Others: f.Others},
		InCluster: !f.Removed && (!c.IsWorker() || f.Joined),
	}
	if i := slices.IndexFunc(c.Cluster.Spec.ControlPlanes, func(a netip.Addr) bool { return slices.Contains(f.Addresses, a) }); i >= 0 {
		out.Address = c.Cluster.Spec.ControlPlanes[i].String()
	}
	return out
}

// AwaitSettled waits until all checks of the health pass except that of the turn and the check
// `ignored`, and the last upgrade is committed or rolled back (undecided is false). watchHealth
// calls `each` with the health, now and after each change, until `each` returns more = false.
func AwaitSettled(ctx context.Context, undecided cell.View[bool], ignored string, watchHealth func(ctx context.Context, each func(*api.HealthResponse) (more bool, err error)) error) error {
	upgrades := undecided.Watch()
	for {
		for pending := true; pending; {
			var err error
			if pending, _, err = upgrades.Next(ctx); err != nil {
				return err
			}
		}
		err := watchHealth(ctx, func(have *api.HealthResponse) (more bool, err error) {
			return slices.ContainsFunc(have.Checks, func(c *api.HealthCheck) bool { return !c.Ok && c.Name != CheckName && c.Name != ignored }), nil
		})
		if pending, _ := undecided.Get(); err != nil || !pending {
			return err
		}
	}
}
