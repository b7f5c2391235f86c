package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// minUptime is the uptime before which the machine refuses a step after which it is away. So no
// program in the cluster can hold it in a loop of reboots.
const minUptime = 10 * time.Minute

// repaired are the services that a repair restarts. The pods continue.
var repaired = []string{nodespec.ServiceContainerd, nodespec.ServiceNode}

// repairDeps are the parts of a machine that a repair uses.
type repairDeps struct {
	uptime   func() (time.Duration, error)
	restart  func(service string) error
	reboot   func(ctx context.Context, by string) error
	rollback func(ctx context.Context, by string) error
}

func newRepairDeps(m *machine) repairDeps {
	return repairDeps{
		uptime: func() (time.Duration, error) {
			started, err := m.system.kernelStarted()
			return time.Since(started), err
		},
		restart: m.processes.services.Restart,
		reboot: func(ctx context.Context, by string) error {
			return m.power.Go(ctx, power.Away{To: power.Reboot, By: by})
		},
		rollback: func(ctx context.Context, by string) error {
			_, err := m.upgrade.Controller.Rollback(ctx, false, by)
			return err
		},
	}
}

// repair performs a step of a repair, with the checks of an operator's call; no step is forced. The
// errors are gRPC statuses.
func (d repairDeps) repair(ctx context.Context, step, by string) error {
	if step := repair.Step(step); step == repair.Reboot || step == repair.OtherSlot {
		up, err := d.uptime()
		if err != nil {
			return status.Errorf(codes.FailedPrecondition, "repair refused: the uptime is unknown: %v", err)
		}
		if up < minUptime {
			return status.Errorf(codes.FailedPrecondition, "repair refused: the machine has booted %v ago, and leaves %v after its boot at the earliest", up.Round(time.Second), minUptime)
		}
	}
	switch repair.Step(step) {
	case repair.RestartServices:
		for _, service := range repaired {
			if err := d.restart(service); err != nil {
				return status.Error(codes.FailedPrecondition, fmt.Sprintf("repair refused: %v", err))
			}
		}
		return nil
	case repair.Reboot:
		return d.reboot(ctx, by)
	case repair.OtherSlot:
		return d.rollback(ctx, by)
	}
	return status.Errorf(codes.InvalidArgument, "step %q: unknown; known are %s, %s and %s", step, repair.RestartServices, repair.Reboot, repair.OtherSlot)
}
