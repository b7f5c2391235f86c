package skew

import (
	"context"
	"time"

	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// Name is the name of the component.
const Name = "versions"

const (
	// firstInterval is the time before the first list. At a boot, other components need the
	// processor.
	firstInterval = time.Minute
	// interval is the time between two lists. It is long, because the upgrade of a machine takes
	// minutes.
	interval = 5 * time.Minute
)

// Run warns of machines with an older version of Kubernetes until ctx is done. loopback returns the
// API server's privileged connection to itself. The component is always ready, because an old
// version of another machine is no problem of this machine.
func Run(ctx context.Context, env component.Env, loopback func(context.Context) (*rest.Config, error)) error {
	env.Announce(Name, true, "")
	config, err := loopback(ctx)
	if err != nil {
		return nil // ctx was done before the API server started
	}
	client, err := component.NewClient(config)
	if err != nil {
		return err
	}
	timer := time.NewTimer(firstInterval)
	defer timer.Stop()
	for reported := ""; ; timer.Reset(interval) {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		nodes, err := listNodes(ctx, client)
		if err != nil {
			continue // the component of the API server reports the problem
		}
		if text := disruption.Behind(nodes); text != reported {
			reported = text
			env.Announce(Name, true, text)
		}
	}
}
