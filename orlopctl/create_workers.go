package main

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/orlop-os/orlop/hack/qemu"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/paths"
)

// mostWorkers bounds a local cluster; each is a machine with all its memory on this computer.
const mostWorkers = 16

// workerName is the name of a local cluster's n-th worker, from 1.
func workerName(n int) string { return "w" + strconv.Itoa(n) }

// localWorker is a worker that was switched on.
type localWorker struct {
	status     qemu.MachineStatus
	apiAddress string
}

// bringUpWorkers has each worker join, one after the other: they share the computer's processors.
func (c *creation) bringUpWorkers(ctx context.Context) error {
	if len(c.joining) == 0 {
		return nil
	}
	host, err := c.known(c.apiAddress, machineName).endpoint()
	if err != nil {
		return err
	}
	for _, w := range c.joining {
		documents, err := c.invite(ctx, host, w.status.Name)
		if err != nil {
			return err
		}
		if err := c.joinWorker(ctx, w, documents); err != nil {
			c.machine = w.status // its console is what is of interest
			return err
		}
	}
	return nil
}

// invite is `nodes add`. The configuration is kept in the cluster's folder.
func (c *creation) invite(ctx context.Context, host client.Endpoint, name string) (documents []byte, err error) {
	ticket, request, err := newRequest()
	if err != nil {
		return nil, err
	}
	err = connectedTo(ctx, host, func(connection *client.Client) error {
		documents, err = inviteBy(ctx, connection, &api.InviteRequest{Name: name, Request: request}, ticket)
		return err
	})
	if err != nil {
		return nil, err
	}
	return documents, writeSecret(filepath.Join(c.dir, name+".yaml"), documents, true)
}

// joinWorker gives a worker its configuration, and waits until it is healthy.
func (c *creation) joinWorker(ctx context.Context, w localWorker, documents []byte) error {
	name := w.status.Name
	fingerprint, err := shownIdentity(ctx, w.status.Console, func() {})
	if err != nil {
		return err
	}
	connection, pinned, err := c.firstAnswer(ctx, w.apiAddress, fingerprint)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // the process ends soon
	if _, err := connection.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: name + ".yaml"}); err != nil {
		return err
	}
	c.timeline.add(name, "configuration applied")
	err = waitHealthy(ctx, pinned, false, func(r healthReport) error {
		c.timeline.wait(name + ": " + waitingFor(r))
		return nil
	})
	if err != nil {
		return err
	}
	c.timeline.add(name, "healthy: one of the cluster")
	return changeContexts(func(f *contextsFile) error {
		f.Contexts[c.name+"-"+name] = c.known(w.apiAddress, name)
		return nil
	})
}

// forwardsOf are the ways into a local cluster's machines.
func (c *creation) forwardsOf(workers []string) ([]qemu.ForwardSpec, error) {
	kube, err := freePort(paths.PortKubernetes)
	if err != nil {
		return nil, err
	}
	out := []qemu.ForwardSpec{{Machine: machineName, Port: paths.PortKubernetes, HostPort: kube}}
	door, err := freePort(paths.PortApid)
	if err != nil {
		return nil, err
	}
	out = append(out, qemu.ForwardSpec{Machine: machineName, Port: paths.PortApid, HostPort: door})
	for _, name := range workers {
		out = append(out, qemu.ForwardSpec{Machine: name, Port: paths.PortApid}) // any port that is free
	}
	return out, nil
}

// checkWorkers refuses a number of workers that cannot be meant.
func checkWorkers(n int) error {
	if n < 0 || n > mostWorkers {
		return usagef("--workers %d: cannot use: expected 0 to %d", n, mostWorkers)
	}
	return nil
}
