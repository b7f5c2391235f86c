package power

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// Away is an operation of a caller after which the machine is away: a reboot, a shutdown or a
// reset.
type Away struct {
	To          Mode
	GracePeriod time.Duration // as in Request
	Wipe        []string      // labels of the volumes to wipe: a reset
	// Force overrides the refusal of the cluster, also if the member of etcd cannot leave. It does
	// not override the policy of the drain.
	Force bool
	By    string       // the caller
	Drain config.Drain // the choice of the caller; a zero field is that of the configuration
}

// Operation returns the operation for the question to the cluster.
func (a Away) Operation() disruption.Operation {
	switch {
	case slices.Contains(a.Wipe, layout.Data):
		return disruption.ResetData
	case len(a.Wipe) > 0:
		return disruption.Reset
	case a.To == PowerOff:
		return disruption.Shutdown
	}
	return disruption.Reboot
}

// why returns the reason of the shutdown.
func (a Away) why() string {
	if len(a.Wipe) > 0 {
		return "reset by " + a.By
	}
	return "asked by " + a.By
}

// AwayDeps are the dependencies of an operation after which the machine is away.
type AwayDeps struct {
	// Permit returns the reason for which the cluster needs the machine, or with its data its
	// member of etcd. giveBack returns the turn of the machine if the machine is not away after
	// all.
	Permit func(context.Context, Away) (giveBack func(), err error)
	// Drain evicts the pods of the machine, if its policy wants it, and reports whether it did. It
	// continues if the caller disconnects. Undo makes the Node schedulable again.
	Drain func(Away) (done bool, err error)
	Undo  func(Away)
	// Confirm asks the cluster again, after the drain.
	Confirm func(Away) error
	// Leave removes the machine from etcd, on request of a caller.
	Leave func(by string) error
	// Prepare prepares a reset of DATA, right before the shutdown.
	Prepare func() error
}

// Go starts the shutdown of an operation. The cluster is asked, then the pods are evicted; a reset
// asks again after the drain, as does each operation with a drain, which can take an hour. A member
// of etcd that loses its data leaves the cluster. An operation that is refused at any step leaves
// the node, and the turn, as they were before.
func (c *Controller) Go(ctx context.Context, a Away) error {
	resets := len(a.Wipe) > 0
	if why := c.deps.NotInstalled; resets && why != "" {
		return status.Error(codes.FailedPrecondition, "reset refused: "+why)
	}
	if c.Stopping() {
		return c.Shutdown(a.request())
	}
	d := c.deps.Away
	giveBack, err := d.Permit(ctx, a)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	drained, err := d.Drain(a)
	if err != nil {
		giveBack()
		return status.Errorf(codes.FailedPrecondition, "%s refused: %v", a.Operation().Name(), err)
	}
	if err := c.afterDrain(a, drained || resets); err != nil {
		d.Undo(a)
		giveBack()
		return err
	}
	return nil
}

// afterDrain leaves etcd if the data are wiped, and starts the shutdown. The machine that has left
// returns the turn: the others do not count on it any more.
func (c *Controller) afterDrain(a Away, confirm bool) error {
	if confirm {
		if err := c.Check(); err != nil {
			return err
		}
		if err := c.deps.Away.Confirm(a); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	if a.Operation() == disruption.ResetData {
		err := c.deps.Away.Leave(a.By)
		if err != nil && !a.Force {
			return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
		}
		if err != nil {
			c.deps.Console(fmt.Sprintf("reset forced by %s, although: %v", a.By, err))
		}
		if err := c.deps.Away.Prepare(); err != nil {
			return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
		}
	}
	return c.Shutdown(a.request())
}

// request returns the request of the shutdown.
func (a Away) request() Request {
	return Request{To: a.To, GracePeriod: a.GracePeriod, Wipe: a.Wipe, Why: a.why()}
}
