package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// rollout takes the machines of a fleet through steps, one machine after the other.
type rollout struct {
	tool  *tool
	fleet *fleet
}

// rotationTimeout bounds the wait for a machine after a step.
const rotationTimeout = 10 * time.Minute

// take has one machine take a step, waits until what starts anew for it has done so, and returns what the machine says that it does.
func (r *rollout) take(ctx context.Context, i int, request *api.ApplyRequest) (operations []string, err error) {
	was := map[string]int32{}
	var restarts []string
	err = r.fleet.call(ctx, i, func(ctx context.Context, c *client.Client) error {
		list, err := c.Service.List(ctx, &api.ListServicesRequest{})
		if err != nil {
			return err
		}
		for _, s := range list.Services {
			was[s.Name] = s.Pid
		}
		answer, err := c.Config.Apply(ctx, request)
		operations, restarts = answer.GetOperations(), answer.GetRestarts()
		return err
	})
	if err != nil {
		return nil, err
	}
	line := "  machine " + r.fleet.names[i] + ": done"
	if len(restarts) > 0 {
		line += ", starts anew: " + strings.Join(restarts, ", ")
	}
	r.tool.println(line)
	err = r.awaitTopic(ctx, i, "services", func(text []byte) (string, error) { return notYetAnew(text, was, restarts) })
	if err != nil || len(restarts) == 0 {
		return operations, err
	}
	return operations, r.healthy(ctx, i) // one after the other: the others serve meanwhile
}

// notYetAnew is a service that has to start anew and has not yet, or nothing. services is what topic "services" shows.
func notYetAnew(services []byte, was map[string]int32, restarts []string) (string, error) {
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
				return name + " has not started anew", nil
			}
		}
	}
	return "", nil
}

// await looks at a machine until there is nothing that it waits for. look says what it sees by calling its last argument, as often as that
// changes, and returns what that returns.
func (r *rollout) await(ctx context.Context, i int, look func(context.Context, *client.Client, func(waits string) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.tool.timeout(rotationTimeout))
	defer cancel()
	var last string
	for {
		e, err := r.fleet.endpoint(i)
		if err != nil {
			return err
		}
		c, err := r.fleet.connected(ctx, i, e)
		if err == nil {
			err = look(ctx, c, func(waits string) error {
				if last = waits; waits == "" {
					return errSettled
				}
				return nil
			})
		}
		switch {
		case errors.Is(err, errSettled):
			return nil
		case ctx.Err() == nil && !passing(err):
			return err
		case !rest(ctx, dialPause):
			return &exitError{code: exitUnhealthy, err: fmt.Errorf("stopped before it was done: %s", last), hint: "call it again: it goes on where it was"}
		}
	}
}

var errSettled = errors.New("nothing is waited for any more")

// awaitTopic is await by what a topic shows.
func (r *rollout) awaitTopic(ctx context.Context, i int, topic string, waits func([]byte) (string, error)) error {
	return r.await(ctx, i, func(ctx context.Context, c *client.Client, say func(string) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: topic})
		if err != nil {
			return err
		}
		return each(stream.Recv, func(s *api.StateSnapshot) error {
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

func (r *rollout) healthy(ctx context.Context, i int) error {
	return r.await(ctx, i, func(ctx context.Context, c *client.Client, say func(string) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{})
		if err != nil {
			return err
		}
		return each(stream.Recv, func(h *api.HealthResponse) error {
			var bad []string
			for _, check := range h.Checks {
				if !check.Ok {
					bad = append(bad, strings.TrimSuffix(check.Name+": "+check.Detail, ": "))
				}
			}
			if h.Healthy {
				return say("")
			}
			return say("not healthy: " + strings.Join(bad, ", "))
		})
	})
}

// withMachine says which machine an error is of, if it does not do so itself.
func withMachine(name string, err error) error {
	if strings.HasPrefix(err.Error(), "machine ") {
		return err
	}
	return fmt.Errorf("machine %s: %w", name, err)
}
