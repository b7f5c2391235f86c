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
	// CheckQuorum rejects a reset that retains the data of etcd, and CheckLeave a reset that wipes
	// them, if etcd would lose its quorum. Leave removes the machine from etcd, on request of a
	// caller.
	CheckQuorum, CheckLeave func() error
	Leave                   func(by string) error
}

// Reset wipes partitions during a shutdown and reboots. The pods are evicted before, and an etcd
// member without its data leaves the cluster. by is the caller. All is checked before the first
// change, and again after the drain, which can take minutes.
func (c *Controller) Reset(labels []string, by string) error {
	if why := c.deps.NotInstalled; why != "" {
		return status.Error(codes.FailedPrecondition, "reset refused: "+why)
	}
	if err := c.Check(); err != nil {
		return err
	}
	d := c.deps.Reset
	check, leave := d.CheckQuorum, d.CheckQuorum
	if slices.Contains(labels, disklayout.Data) {
		check, leave = d.CheckLeave, func() error { return d.Leave(by) }
	}
	for _, step := range []func() error{check, d.Drain} {
		if err := step(); err != nil {
			return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
		}
	}
	if err := c.afterDrain(leave, Request{To: Reboot, Wipe: labels, Why: "reset by " + by}); err != nil {
		d.Uncordon()
		return err
	}
	return nil
}

// afterDrain leaves etcd and starts the shutdown.
func (c *Controller) afterDrain(leave func() error, r Request) error {
	if err := c.Check(); err != nil {
		return err
	}
	if err := leave(); err != nil {
		return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	return c.Shutdown(r)
}
