package main

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/pods"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/disklayout"
)

// newPower makes the controller of the shutdown. Its functions use packages that are made later.
func newPower(m *machine, containerd *grpc.ClientConn) *power.Controller {
	stopper := pods.New(pods.Deps{Services: m.services, Containerd: containerd, Console: m.events.LogConsole})
	return power.NewController(power.Deps{
		StopPods:     stopper.Stop,
		StopServices: m.services.Shutdown,
		CloseLogs: func(ctx context.Context) error {
			err := m.logShipping.Close(ctx)
			m.debug.EndKernelLog(ctx)
			return err
		},
		Wipe:    m.disks.Wipe,
		Enter:   m.progress.Enter,
		Console: m.events.LogConsole,
	})
}

// reset wipes partitions during a shutdown and reboots. The pods are evicted before, and an etcd
// member without its data leaves the cluster. by is the caller.
func (m *machine) reset(labels []string, by string) error {
	if m.system.inMemory() {
		return status.Error(codes.FailedPrecondition, "reset refused: "+notInstalled)
	}
	if err := m.power.Check(); err != nil {
		return err
	}
	if err := m.upgrade.Drainer.Drain(); err != nil {
		return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	may := m.etcd.CheckQuorumWithout
	if slices.Contains(labels, disklayout.Data) {
		may = func() error { return m.etcd.Leave(by) }
	}
	if err := may(); err != nil {
		m.upgrade.Drainer.Uncordon()
		return status.Errorf(codes.FailedPrecondition, "reset refused: %v", err)
	}
	return m.power.Shutdown(power.Request{To: power.Reboot, Wipe: labels, Why: "reset by " + by})
}
