package repair

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// minUptime is the time after a boot in which the machine refuses each step that reboots it.
// Without it, a program in the cluster could reboot the machine in a loop.
const minUptime = 10 * time.Minute

// repaired are the services that the step RestartServices restarts. The pods continue.
var repaired = []string{nodespec.ServiceContainerd, nodespec.ServiceNode}

// Deps are the functions of the machine that a repair uses.
type Deps struct {
	// Started returns the time at which the kernel started.
	Started func() (time.Time, error)
	// Restart restarts a service.
	Restart func(service string) error
	// Reboot and Rollback have the same checks as the calls of an operator. by is the author of the
	// step. The errors are gRPC statuses.
	Reboot   func(ctx context.Context, by string) error
	Rollback func(ctx context.Context, by string) error
}

// Do performs a step of a repair, or refuses it with a gRPC status. by is the author of the step.
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

// checkUptime returns an error if the machine booted less than minUptime ago, or if the uptime is
// unknown.
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
