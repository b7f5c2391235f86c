package localcluster

import (
	"context"
	"path/filepath"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// configureOthers configures the control-plane machines after the first. It returns their
// endpoints. etcd starts after all control-plane machines have reported that they have no data.
func (c *creation) configureOthers(ctx context.Context) ([]client.Endpoint, error) {
	var all []client.Endpoint
	for _, m := range c.otherControlPlanes() {
		documents, err := c.documents(m.status)
		if err != nil {
			return nil, err
		}
		pinned, err := c.configure(ctx, m, documents)
		if err != nil {
			c.failed = m.status
			return nil, err
		}
		all = append(all, pinned)
	}
	return all, nil
}

// bringUpWorkers configures the workers in order, because they share the processors of this
// computer.
func (c *creation) bringUpWorkers(ctx context.Context) error {
	if len(c.workers()) == 0 {
		return nil
	}
	host, err := c.known(c.first()).Client()
	if err != nil {
		return err
	}
	for _, w := range c.workers() {
		documents, err := c.addNode(ctx, host, w.status.Name)
		if err != nil {
			return err
		}
		if err := c.joinWorker(ctx, w, documents); err != nil {
			c.failed = w.status
			return err
		}
	}
	return nil
}

// addNode creates a ticket for a worker, like `nodes add`. It returns the configuration with the
// ticket, and stores it in the cluster's directory.
func (c *creation) addNode(ctx context.Context, host client.Endpoint, name string) (documents []byte, err error) {
	ticket, request, err := gen.NewRequest()
	if err != nil {
		return nil, err
	}
	err = connect.Do(ctx, host, func(connection *client.Client) error {
		documents, err = gen.WorkerConfig(ctx, connection, &api.CreateTicketRequest{Name: name, Csr: request}, ticket, config.Node{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return documents, secretfile.Write(filepath.Join(c.dir, name+".yaml"), documents, true)
}

// joinWorker configures a worker and waits until it is healthy.
func (c *creation) joinWorker(ctx context.Context, w member, documents []byte) error {
	pinned, err := c.configure(ctx, w, documents)
	if err != nil {
		return err
	}
	return c.joined(ctx, w, pinned)
}

// configure waits until a machine answers, and applies its configuration. It returns the endpoint
// of the machine.
func (c *creation) configure(ctx context.Context, m member, documents []byte) (client.Endpoint, error) {
	name := m.status.Name
	fingerprint, err := shownIdentity(ctx, m.status.Console, func() {})
	if err != nil {
		return client.Endpoint{}, err
	}
	connection, pinned, err := c.firstAnswer(ctx, m.apiAddress, fingerprint)
	if err != nil {
		return client.Endpoint{}, err
	}
	defer func() { _ = connection.Close() }() // the process ends soon
	if _, err := connection.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: name + ".yaml"}); err != nil {
		return client.Endpoint{}, err
	}
	c.timeline.add(name, "configuration applied")
	return pinned, nil
}

// joined waits until a machine is healthy, and stores its context.
func (c *creation) joined(ctx context.Context, m member, pinned client.Endpoint) error {
	name := m.status.Name
	err := health.Wait(ctx, pinned, false, func(r health.Report) error {
		c.timeline.wait(name + ": " + waitingFor(r))
		return nil
	})
	if err != nil {
		return err
	}
	c.timeline.add(name, "healthy, and a member of the cluster")
	return contexts.Change(func(f *contexts.File) error {
		f.Contexts[contextOf(c.name, name)] = c.known(m)
		return nil
	})
}
