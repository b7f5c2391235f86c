package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// powerRequest is a request to shut down.
type powerRequest struct {
	to          power.Mode
	gracePeriod time.Duration // for services and pods; 0 for defaultGracePeriod
	wipe        []string      // labels of the volumes to wipe
	why         string
}

const (
	// defaultGracePeriod is the time for services and pods to stop.
	defaultGracePeriod = 60 * time.Second
	// unmountTime is the additional time for unmounts and the like.
	unmountTime = 30 * time.Second
	// wipeTime is the additional time of a reset: STATE, 256 MiB, is overwritten and read back, and
	// of DATA the part that the disk does not discard.
	wipeTime = 2 * time.Minute
)

// shutDown starts the shutdown and returns at once, so that the caller gets an answer. Only the
// first request is performed; a different request is an error.
func (m *machine) shutDown(r powerRequest) error {
	if !m.shutdown.CompareAndSwap(nil, &r) {
		if first := m.shutdown.Load(); len(r.wipe) > 0 || r.to != first.to {
			return m.checkRunning()
		}
		return nil
	}
	go m.runShutdown(r)
	return nil
}

// checkRunning returns a status with the reason of the shutdown, or nil.
func (m *machine) checkRunning() error {
	if r := m.shutdown.Load(); r != nil {
		return status.Errorf(codes.FailedPrecondition, "the machine is already shutting down (%s: %s); call again after it has booted", r.to, r.why)
	}
	return nil
}

// reset wipes partitions during a shutdown and reboots. The pods are evicted before, and an etcd
// member without its data leaves the cluster. by is the caller.
func (m *machine) reset(labels []string, by string) error {
	if m.bootMedium != "" {
		return status.Error(codes.FailedPrecondition, "reset refused: "+notInstalled)
	}
	if err := m.checkRunning(); err != nil {
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
	return m.shutDown(powerRequest{to: power.Reboot, wipe: labels, why: "reset by " + by})
}

// runShutdown performs the shutdown (package power contains the order) and does not return.
// Kubernetes' own processes stop before the pods, so that they do not restart stopped pods.
func (m *machine) runShutdown(r powerRequest) {
	if r.gracePeriod == 0 {
		r.gracePeriod = defaultGracePeriod
	}
	m.cancelRun(errors.New("the machine is shutting down"))
	m.enter("going down", r.why)
	m.logConsole(fmt.Sprintf("%s: %s", r.to, r.why))
	c := power.Config{
		Last: m.stopFeeding,
		Pods: m.stopPods,
		// their last log lines are still shipped and stored
		Services: func(ctx context.Context) error {
			shutdown, cancel := withReserve(ctx, 10*time.Second)
			defer cancel()
			err := errors.Join(m.services.Shutdown(shutdown), m.logShipping.Close(ctx))
			m.debug.EndKernelLog(ctx)
			return err
		},
		Report: func(message string, err error) {
			if err != nil {
				message += ": " + err.Error()
			}
			m.logConsole("going down: " + message)
		},
	}
	total := r.gracePeriod + unmountTime
	if len(r.wipe) > 0 {
		total += wipeTime
		c.Wipe = func(ctx context.Context) error { return m.wipe(ctx, r.wipe) }
	}
	if err := power.New(c).Shutdown(r.to, total); err != nil {
		m.logConsole(err.Error()) // the watchdog is not fed any more and resets the machine
	}
	select {}
}

// withReserve returns a context that ends earlier than ctx by reserve, to leave time for the next
// steps, unless that exceeds half of the remaining time.
func withReserve(ctx context.Context, rest time.Duration) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || time.Until(end) <= 2*rest {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-rest))
}

// stopPodsByKubelet signals the kubelet to stop the pods in order, with their hooks and grace
// periods, and waits for it. A missing or slow kubelet is skipped: the containers are stopped
// afterwards in any case.
func (m *machine) stopPodsByKubelet(ctx context.Context) {
	if m.services.Signal(nodeplan.ServiceNode, unix.SIGPWR) != nil {
		return
	}
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)*2/3)
		defer cancel()
	}
	_, err := cell.Wait(ctx, m.services.Status(), func(list []supervise.Status) bool {
		i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceNode })
		return i < 0 || !list[i].State.Alive() || slices.ContainsFunc(list[i].Components, func(c supervise.Component) bool { return c.Detail == nodespec.PodsStoppedDetail })
	})
	if err != nil {
		m.logConsole("the kubelet has not stopped all pods in time")
	}
}

// stopPods stops the pods: first by the kubelet, then the rest, after the services that could
// restart pods.
func (m *machine) stopPods(ctx context.Context) error {
	m.stopPodsByKubelet(ctx)
	keep := slices.DeleteFunc(m.services.Services(), func(s supervise.Service) bool {
		return s.Name != nodeplan.ServiceContainerd && s.Name != nodeplan.ServiceApid
	})
	if err := m.services.Set(keep); err != nil {
		return err
	}
	for w := m.services.Status().Watch(); ; {
		list, _, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(s supervise.Status) bool { return s.State == supervise.Stopping }) {
			break
		}
	}
	if m.containerdReady() != nil {
		return nil // no containerd, no containers
	}
	return m.stopContainers(ctx)
}

// stopContainers signals every container to stop, waits for all, and kills the rest shortly before
// ctx ends.
func (m *machine) stopContainers(ctx context.Context) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", imagestore.Namespace)
	client := tasks.NewTasksClient(m.containerd)
	list, err := client.List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return fmt.Errorf("containers: cannot list: %w", err)
	}
	timeout := time.Duration(0)
	if end, ok := ctx.Deadline(); ok {
		timeout = time.Until(end) * 3 / 4
	}
	var wait sync.WaitGroup
	problems := make([]error, len(list.Tasks))
	for i, t := range list.Tasks {
		wait.Add(1)
		go func() {
			defer wait.Done()
			problems[i] = panics.Do("stopping a container", func() error { return stopContainer(ctx, client, t.ID, timeout) })
		}()
	}
	wait.Wait()
	return errors.Join(problems...)
}

func stopContainer(ctx context.Context, client tasks.TasksClient, id string, timeout time.Duration) error {
	exited := make(chan error, 1)
	go func() {
		exited <- panics.Do("waiting for a container", func() error {
			_, err := client.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
			return err
		})
	}()
	if _, err := client.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGTERM)}); err != nil {
		return fmt.Errorf("container %s: cannot stop: %w", id, err)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-exited:
		return err
	case <-timer.C:
	}
	if _, err := client.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true}); err != nil {
		return fmt.Errorf("container %s: cannot kill: %w", id, err)
	}
	return <-exited
}

// wipe erases the partitions for a reset.
func (m *machine) wipe(ctx context.Context, labels []string) error {
	have, err := disk.Read(ctx, nil)
	if err != nil {
		return err
	}
	for _, op := range disk.Reset(have, labels, func(line string) { m.logConsole("reset: " + line) }) {
		m.logConsole("reset: " + op.String())
		if err := op.Do(ctx); err != nil {
			return err
		}
	}
	return nil
}
