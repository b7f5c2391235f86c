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

// Away is an operation that a caller of the API requests and after which the machine is away: a
// reboot, a shutdown or a reset.
type Away struct {
	To          Mode
	GracePeriod time.Duration // as in Request
	Wipe        []string      // labels of the volumes to wipe; not empty for a reset
	// Force performs the operation even if the cluster refuses it, or if the machine cannot leave
	// etcd. It does not override the drain policy.
	Force bool
	By    string       // the name of the caller
	Drain config.Drain // the drain policy of the caller; the configuration replaces zero fields
}

// Operation returns the kind of operation for which the machine asks the cluster for permission.
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

// why returns the reason that the console and the log show for the shutdown.
func (a Away) why() string {
	if len(a.Wipe) > 0 {
		return "reset by " + a.By
	}
	return "asked by " + a.By
}

// AwayDeps are the functions that Controller.Go needs.
type AwayDeps struct {
	// Permit asks the cluster for permission and takes the turn for the machine. An error means
	// that the cluster still needs the machine, or its etcd member if the data are wiped. The
	// caller calls giveBack to return the turn if the operation does not take place.
	Permit func(context.Context, disruption.Request) (giveBack func(), err error)
	// Wanted reports whether a drain with the policy of a caller evicts pods.
	Wanted func(config.Drain) bool
	// Drain evicts the pods of the machine if the policy requires it. done is true if it evicted
	// pods. Undo makes the Node schedulable again.
	Drain func(ctx context.Context, o disruption.Operation, by string, policy config.Drain) (done bool, err error)
	Undo  func(o disruption.Operation, by string)
	// Confirm asks the cluster again for permission, after the drain.
	Confirm func(context.Context, disruption.Request) error
	// Leave removes the machine from etcd. by is the caller.
	Leave func(by string) error
	// Prepare prepares the wipe of DATA, immediately before the shutdown.
	Prepare func() error
}

// Go performs the steps of an operation up to the start of the shutdown, and returns an error if
// any step refuses it. It asks the cluster, evicts the pods, asks the cluster again, leaves etcd if
// the operation wipes DATA, and starts the shutdown. It asks the second time only for a reset or
// after a drain, because a drain can take an hour.
//
// If a step fails, Go makes the Node schedulable again and returns the turn. A reset, and an
// operation with a drain, continue if the caller disconnects.
func (c *Controller) Go(ctx context.Context, a Away) error {
	resets := len(a.Wipe) > 0
	if why := c.deps.NotInstalled; resets && why != "" {
		return status.Error(codes.FailedPrecondition, "reset refused: "+why)
	}
	if c.Stopping() {
		return c.Shutdown(a.request())
	}
	d := c.deps.Away
	if resets || d.Wanted(a.Drain) {
		ctx = c.running
	}
	giveBack, err := d.Permit(ctx, a.question())
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	drained, err := d.Drain(c.running, a.Operation(), a.By, a.Drain)
	if err != nil {
		giveBack()
		return status.Errorf(codes.FailedPrecondition, "%s refused: %v", a.Operation().Name(), err)
	}
	if err := c.afterDrain(a, drained || resets); err != nil {
		d.Undo(a.Operation(), a.By)
		giveBack()
		return err
	}
	return nil
}

// afterDrain performs the steps after the drain: it asks the cluster again (if confirm is true),
// leaves etcd if the operation wipes DATA, and starts the shutdown. After an error the caller
// returns the turn, even if the machine has already left etcd. The etcd members then no longer need
// this machine.
func (c *Controller) afterDrain(a Away, confirm bool) error {
	if confirm {
		if err := c.Check(); err != nil {
			return err
		}
		if err := c.deps.Away.Confirm(c.running, a.question()); err != nil {
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

// question returns the request with which the machine asks the cluster for permission.
func (a Away) question() disruption.Request {
	return disruption.Request{Operation: a.Operation(), Force: a.Force, By: a.By, GracePeriod: a.GracePeriod}
}

// request returns the request for the shutdown.
func (a Away) request() Request {
	return Request{To: a.To, GracePeriod: a.GracePeriod, Wipe: a.Wipe, Why: a.why()}
}
