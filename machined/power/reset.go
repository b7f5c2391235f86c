package power

import (
	"fmt"
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
	// Permit returns the reason for which the cluster needs the machine, or with data its member of
	// etcd. giveBack returns the turn of the machine if the machine is not away after all.
	Permit func(data, force bool, by string) (giveBack func(), err error)
	// Confirm asks again, after the drain.
	Confirm func(data, force bool, by string) error
	// Leave removes the machine from etcd, on request of a caller.
	Leave func(by string) error
	// Prepare prepares a reset of DATA, right before the shutdown.
	Prepare func() error
}

// Reset wipes partitions during a shutdown and reboots. The pods are evicted before, and an etcd
// member without its data leaves the cluster. force overrides the refusal of the cluster, also if
// the member cannot leave. by is the caller. All is checked before the first change, and again
// after the drain, which can take minutes.
func (c *Controller) Reset(labels []string, force bool, by string) error {
	if why := c.deps.NotInstalled; why != "" {
		return status.Error(codes.FailedPrecondition, "reset refused: "+why)
	}
	if err := c.Check(); err != nil {
		return err
	}
	d, data := c.deps.Reset, slices.Contains(labels, disklayout.Data)
	giveBack, err := d.Permit(data, force, by)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := d.Drain(); err != nil {
		giveBack()
		return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	if err := c.afterDrain(data, force, by, labels); err != nil {
		d.Uncordon()
		giveBack()
		return err
	}
	return nil
}

// afterDrain leaves etcd and starts the shutdown. The machine that has left returns the turn: the
// others do not count on it any more.
func (c *Controller) afterDrain(data, force bool, by string, labels []string) error {
	if err := c.Check(); err != nil {
		return err
	}
	if err := c.deps.Reset.Confirm(data, force, by); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if data {
		err := c.deps.Reset.Leave(by)
		if err != nil && !force {
			return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
		}
		if err != nil {
			c.deps.Console(fmt.Sprintf("reset forced by %s, although: %v", by, err))
		}
	}
	if data {
		if err := c.deps.Reset.Prepare(); err != nil {
			return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
		}
	}
	return c.Shutdown(Request{To: Reboot, Wipe: labels, Why: "reset by " + by})
}
