package clusterhealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// publishInterval is the time between two reports for the controllers. Each report calls all
// machines of the cluster.
const publishInterval = time.Minute

// PublisherDeps is the environment of a Publisher.
type PublisherDeps struct {
	// Enabled reports whether this control-plane machine maintains objects of the cluster.
	Enabled func() bool
	// Health returns the health of this machine.
	Health func(context.Context) (*api.HealthResponse, error)
	// Collect returns the health of the cluster.
	Collect func(context.Context, *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error)
	// Access returns the services for access to the API server in the configuration.
	Access func() nodespec.AccessPoints
	// Write writes the file of the controllers; fs.ErrNotExist: its directory does not exist yet.
	Write func(content []byte) error
	// Event adds an event to the machine's events.
	Event func(kind, message string)
}

// Publisher passes the health of the cluster to the controllers of this machine while they lead,
// for the objects ClusterHealth and Component.
type Publisher struct {
	deps    PublisherDeps
	failing bool // the last report has failed
}

// NewPublisher returns a Publisher.
func NewPublisher(d PublisherDeps) *Publisher { return &Publisher{deps: d} }

// Run publishes until ctx is done.
func (p *Publisher) Run(ctx context.Context) {
	tick := time.NewTicker(publishInterval)
	defer tick.Stop()
	for {
		p.publish(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// publish writes a report if the controllers of this machine have won the leader election. The
// first failure in a row is an event. After a failure, the old file remains, and the controllers
// see its age.
func (p *Publisher) publish(ctx context.Context) {
	if !p.deps.Enabled() {
		return
	}
	err := p.report(ctx)
	switch {
	case err == nil:
		p.failing = false
	case ctx.Err() != nil, errors.Is(err, fs.ErrNotExist): // no control plane runs here
	case !p.failing:
		p.failing = true
		p.deps.Event("failure", fmt.Sprintf("cannot pass the health of the cluster to the controllers: %v; the objects ClusterHealth and Component are out of date", err))
	}
}

func (p *Publisher) report(ctx context.Context) error {
	own, err := p.deps.Health(ctx)
	if err != nil || !leads(own) {
		return err
	}
	answer, err := p.deps.Collect(ctx, &api.ClusterHealthRequest{})
	if err != nil {
		return err
	}
	health, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	content, err := json.Marshal(nodespec.ClusterReport{Health: health, Access: p.deps.Access()})
	if err != nil {
		return err
	}
	return p.deps.Write(content)
}

// The function leads reports whether the controllers of a machine have won the leader election. It
// is not enough that they are ready: the controllers of the other machines are ready, too, and
// stand by.
func leads(own *api.HealthResponse) bool {
	for _, c := range own.GetChecks() {
		if c.Name == checkMachines {
			return c.Ok && c.Detail != standby
		}
	}
	return false
}
