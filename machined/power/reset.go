package power

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/disklayout"
)

// ResetDeps are the dependencies of a reset.
type ResetDeps struct {
	// Drain evicts the pods of the machine, and Uncordon makes its Node schedulable again.
	Drain    func() error
	Uncordon func()
	// CheckQuorum rejects the reset if etcd would have no quorum meanwhile. Leave removes the
	// machine from etcd, on request of a caller.
	CheckQuorum func() error
	Leave       func(by string) error
}

// Reset wipes partitions during a shutdown and reboots. The pods are evicted before, and an etcd
// member without its data leaves the cluster. by is the caller.
func (c *Controller) Reset(labels []string, by string) error {
	if why := c.deps.NotInstalled; why != "" {
		return status.Error(codes.FailedPrecondition, "reset refused: "+why)
	}
	if err := c.Check(); err != nil {
		return err
	}
	d := c.deps.Reset
	if err := d.Drain(); err != nil {
		return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	may := d.CheckQuorum
	if slices.Contains(labels, disklayout.Data) {
		may = func() error { return d.Leave(by) }
	}
	if err := may(); err != nil {
		d.Uncordon()
		return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	return c.Shutdown(Request{To: Reboot, Wipe: labels, Why: "reset by " + by})
}
