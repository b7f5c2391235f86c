package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
)

// machineTimeout bounds the wait for a machine after a step.
const machineTimeout = 10 * time.Minute

// notRestarted returns a sentence about a service that still has to restart, or "" if there is
// none. services is the JSON value of the machine's topic "services". was maps the names of
// services to their process IDs before the step. restarts has the names of the services that the
// step restarts.
func notRestarted(services []byte, was map[string]int32, restarts []string) (string, error) {
	var list []struct {
		Name string `json:"name"`
		PID  int32  `json:"pid"`
	}
	if err := json.Unmarshal(services, &list); err != nil {
		return "", fmt.Errorf("services: cannot read the machine's answer: %w", err)
	}
	for _, name := range restarts {
		for _, s := range list {
			if s.Name == name && (s.PID == 0 || s.PID == was[name]) {
				return name + " has not restarted", nil
			}
		}
	}
	return "", nil
}

// await waits until look reports that machine i has reached the desired state. It connects to the
// machine and calls look, and repeats both after a lost connection. look watches the machine. For
// each change it calls the function in its last argument with the reason why the state is not
// reached yet, or with "" when the state is reached. When this function returns an error, look
// returns that error.
func (r *rollout) await(ctx context.Context, i int, look func(context.Context, *client.Client, func(waits string) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.conn.Timeout(machineTimeout))
	defer cancel()
	var last string
	for {
		e, err := r.fleet.Endpoint(i)
		if err != nil {
			return err
		}
		c, err := r.fleet.Client(ctx, i, e)
		if err == nil {
			looking, stop := context.WithCancel(ctx)
			err = look(looking, c, func(waits string) error {
				if last = waits; waits == "" {
					return errDone
				}
				return nil
			})
			stop() // ends the watch
		}
		switch {
		case errors.Is(err, errDone):
			return nil
		case ctx.Err() == nil && !exit.IsTemporary(err):
			return err
		case backoff.Sleep(ctx, connect.DialInterval) != nil:
			return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("stopped before it was done: %s", last), Hint: "call it again: it continues in the same place"}
		}
	}
}

// errDone ends look in await after the state is reached.
var errDone = errors.New("the wait is over")

// awaitTopic waits until the function waits returns "" for the value of a topic of machine i. For
// any other value of the topic, the function returns the reason why the state is not reached yet.
func (r *rollout) awaitTopic(ctx context.Context, i int, topic string, waits func([]byte) (string, error)) error {
	return r.await(ctx, i, func(ctx context.Context, c *client.Client, say func(string) error) error {
		stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: topic})
		if err != nil {
			return err
		}
		return connect.Each(stream.Recv, func(s *api.TopicValue) error {
			text, err := s.Value.MarshalJSON()
			if err != nil {
				return err
			}
			what, err := waits(text)
			if err != nil {
				return err
			}
			return say(what)
		})
	})
}

// healthy waits until machine i is healthy.
func (r *rollout) healthy(ctx context.Context, i int) error {
	return r.await(ctx, i, func(ctx context.Context, c *client.Client, say func(string) error) error {
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{})
		if err != nil {
			return err
		}
		return connect.Each(stream.Recv, func(h *api.HealthResponse) error {
			if h.Healthy {
				return say("")
			}
			return say("not healthy: " + strings.Join(health.Failed(h), ", "))
		})
	})
}
