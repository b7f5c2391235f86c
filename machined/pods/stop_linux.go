package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Deps is the environment of a Stopper.
type Deps struct {
	// Services manages the services of the machine, among them orchestrator-node (the kubelet) and
	// containerd.
	Services *supervise.Manager
	// Containerd is the connection to containerd's socket.
	Containerd *grpc.ClientConn
	// Console writes a line to the console.
	Console func(line string)
}

// Stopper stops the pods of the machine.
type Stopper struct{ deps Deps }

// New returns a Stopper.
func New(d Deps) *Stopper { return &Stopper{d} }

// stopByKubelet signals the kubelet to stop the pods in order, with their hooks and grace periods.
// It waits until the pods have stopped, for at most two thirds of the time that ctx leaves. It
// returns early if the kubelet does not run. In all cases the caller then stops the remaining
// containers.
func (s *Stopper) stopByKubelet(ctx context.Context) {
	if s.deps.Services.Signal(nodespec.ServiceNode, unix.SIGPWR) != nil {
		return
	}
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)*2/3)
		defer cancel()
	}
	_, err := cell.Wait(ctx, s.deps.Services.Status(), func(list []supervise.Status) bool {
		node := supervise.Find(list, nodespec.ServiceNode)
		return !node.State.Alive() || slices.ContainsFunc(node.Components, func(c supervise.Component) bool { return c.Detail == nodespec.PodsStoppedDetail })
	})
	if err != nil {
		s.deps.Console("the kubelet has not stopped all pods in time")
	}
}

// Stop stops the pods. The kubelet stops pods first. Then Stop ends all services except containerd
// and apid, because some of them could start pods again. Last, it stops the remaining containers.
func (s *Stopper) Stop(ctx context.Context) error {
	s.stopByKubelet(ctx)
	keep := slices.DeleteFunc(s.deps.Services.Services(), func(p supervise.Service) bool {
		return p.Name != nodespec.ServiceContainerd && p.Name != nodespec.ServiceApid
	})
	if err := s.deps.Services.Set(keep); err != nil {
		return err
	}
	for w := s.deps.Services.Status().Watch(); ; {
		list, _, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(p supervise.Status) bool { return p.State == supervise.Stopping }) {
			break
		}
	}
	if !s.containerdRuns() {
		return nil // stopContainers needs containerd.
	}
	return s.stopContainers(ctx)
}

func (s *Stopper) containerdRuns() bool {
	list, _ := s.deps.Services.Status().Get()
	return supervise.Find(list, nodespec.ServiceContainerd).State == supervise.Running
}

// stopContainers sends SIGTERM to every container and waits for all of them. It kills those that
// still run after three quarters of the time that ctx leaves.
func (s *Stopper) stopContainers(ctx context.Context) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", imagestore.Namespace)
	client := tasks.NewTasksClient(s.deps.Containerd)
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
