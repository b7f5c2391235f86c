package repair

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// minUptime is the uptime before which the machine refuses a step after which it is away. So no
// program in the cluster can hold it in a loop of reboots.
const minUptime = 10 * time.Minute

// repaired are the services that a repair restarts. The pods continue.
var repaired = []string{nodespec.ServiceContainerd, nodespec.ServiceNode}

// Deps are the parts of a machine that a repair uses.
type Deps struct {
	// Started returns the start of the kernel.
	Started func() (time.Time, error)
	// Restart restarts a service.
	Restart func(service string) error
	// Reboot and Rollback are the calls of an operator; by is their author. The errors are gRPC
	// statuses.
	Reboot   func(ctx context.Context, by string) error
	Rollback func(ctx context.Context, by string) error
}

// Do performs a step of a repair for an author, or refuses it. The errors are gRPC statuses.
func (d Deps) Do(ctx context.Context, step, by string) error {
	switch repair.Step(step) {
	case repair.RestartServices:
		for _, service := range repaired {
			if err := d.Restart(service); err != nil {
				return status.Errorf(codes.FailedPrecondition, "repair refused: %v", err)
			}
		}
		return nil
	case repair.Reboot:
		if err := d.checkUptime(); err != nil {
			return err
		}
		return d.Reboot(ctx, by)
	case repair.OtherSlot:
		if err := d.checkUptime(); err != nil {
			return err
		}
		return d.Rollback(ctx, by)
	}
	return status.Errorf(codes.InvalidArgument, "step %q: unknown; known are %s, %s and %s", step, repair.RestartServices, repair.Reboot, repair.OtherSlot)
}

// checkUptime returns an error for a machine that has just booted.
func (d Deps) checkUptime() error {
	started, err := d.Started()
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "repair refused: the uptime is unknown: %v", err)
	}
	if up := time.Since(started); up < minUptime {
		return status.Errorf(codes.FailedPrecondition, "repair refused: the machine has booted %v ago, and leaves %v after its boot at the earliest", up.Round(time.Second), minUptime)
	}
	return nil
}
