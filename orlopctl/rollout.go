package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// rollout takes the machines of a fleet through the steps of a rotation, one machine after the
// other.
type rollout struct {
	tool            *tool
	file            string // of secrets
	dryRun, oneStep bool

	secrets *secrets
	fleet   *fleet
	planes  []plane // of the machines of the fleet, as far as the rotation has asked
}

// order is the one in which machines take a step: those of the control plane first. A worker asks
// it for certificates as soon as it has the step, and by the old CA they would do it no good.
func (r *rollout) order() []int {
	var first, then []int
	for i := range r.fleet.names {
		if i < len(r.planes) && r.planes[i].controls {
			first = append(first, i)
		} else {
			then = append(then, i)
		}
	}
	return append(first, then...)
}

// rotation is something of a cluster that is replaced step by step.
type rotation interface {
	// begin finds the new one in the file of secrets, or makes it and keeps it there before any
	// machine sees it.
	begin(ctx context.Context) error
	// look reads how far the machines are.
	look(ctx context.Context) error
	// state is how far one of them is; false: it has nothing to do with it.
	state(i int) (state, bool)
	// settle waits until what the machines took last is in force on all of them, and does what
	// comes before the next step.
	settle(ctx context.Context, at state) error
	// request is the next step of a machine, and apply has it taken.
	request(i int, mode api.ApplyRequest_Mode) (*api.ApplyRequest, error)
	apply(ctx context.Context, i int) error
	// finish puts the new one into the old one's place, here.
	finish() error
	stepName(to state) string
	what() string // is replaced, by the new one's name
}

// flags are those that every rotation has. what is added to the file.
func (r *rollout) flags(f *pflag.FlagSet, what string) {
	f.StringVar(&r.file, "secrets", "secrets.yaml", "the cluster's secrets; the new "+what+" is added to the file, and takes the old one's place at the end")
	f.BoolVar(&r.dryRun, "dry-run", false, "change nothing, only say which step is next and what would be done")
	f.BoolVar(&r.oneStep, "one-step", false, "take one step on every machine, and no more")
}

// run takes the steps that are left.
func (r *rollout) run(of rotation) (err error) {
	ctx, stop := interruptible()
	defer stop()
	if r.secrets, err = readSecrets(r.file); err != nil {
		return err
	}
	if r.fleet, err = r.tool.fleet(); err != nil {
		return err
	}
	defer r.fleet.close()
	if err := of.begin(ctx); err != nil {
		return err
	}
	for taken := false; ; taken = true {
		if err := of.look(ctx); err != nil {
			return err
		}
		at := r.leastFar(of) // only machines in that state may take a step
		if r.dryRun {
			return r.plan(ctx, of, at)
		}
		if taken && r.oneStep && at != alone {
			r.tool.printf("stopped after one step; the next is %q, by the same command\n", of.stepName(at+1))
			return nil
		}
		if at > before {
			if err := of.settle(ctx, at); err != nil {
				return err
			}
		}
		if at == alone {
			return of.finish()
		}
		r.tool.printf("step %d of 3: %s %s\n", at+1, of.stepName(at+1), of.what())
		for _, i := range r.order() {
			if is, has := of.state(i); has && is == at {
				if err := of.apply(ctx, i); err != nil {
					return withMachine(r.fleet.names[i], err)
				}
			}
		}
	}
}

// leastFar is the state of the machine that is least far.
func (r *rollout) leastFar(of rotation) state {
	least := alone
	for i := range r.fleet.names {
		if is, has := of.state(i); has {
			least = min(least, is)
		}
	}
	return least
}

// plan says what would be done.
func (r *rollout) plan(ctx context.Context, of rotation, at state) error {
	if at == alone {
		r.tool.println("the machines have taken every step; what is left is the file of secrets and your context")
		return nil
	}
	for step := at + 1; step <= alone; step++ {
		r.tool.printf("step %d of 3: %s\n", step, of.stepName(step))
		for _, i := range r.order() {
			name := r.fleet.names[i]
			is, has := of.state(i)
			if !has || is >= step {
				continue
			}
			r.tool.println("  machine " + name)
			if step > at+1 {
				continue
			}
			request, err := of.request(i, api.ApplyRequest_MODE_DRY_RUN)
			if err != nil {
				return err
			}
			if err := r.fleet.call(ctx, i, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Apply(ctx, request)
				for _, op := range answer.GetOperations() {
					r.tool.println("    " + op)
				}
				return err
			}); err != nil {
				return withMachine(name, err)
			}
		}
	}
	return nil
}

// rotationTimeout bounds the wait for a machine after a step.
const rotationTimeout = 10 * time.Minute

// take has one machine take a step, waits until what starts anew for it has done so, and returns
// what the machine says that it does.
func (r *rollout) take(ctx context.Context, i int, request *api.ApplyRequest) (operations []string, err error) {
	was := map[string]int32{}
	var restarts []string
	var trial *api.ApplyResponse
	request.TrialName = trialName()
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
		trial = answer
		return err
	})
	if err == nil && trial.TrialDeadline != nil {
		err = r.confirm(ctx, i, request.TrialName, trial)
	}
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

// confirm keeps what a machine has put on trial, over a new connection: the step changes whom it
// trusts.
func (r *rollout) confirm(ctx context.Context, i int, name string, answer *api.ApplyResponse) error {
	left := answer.TrialDuration.AsDuration()
	until := time.Now().Add(left)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	e, err := r.fleet.endpoint(i)
	if err != nil {
		return err
	}
	c := &confirmation{trial: name, places: placesOf(e, nil)}
	if r.fleet.way != nil {
		c.anew = r.fleet.way.close
	}
	if err := c.run(ctx); err != nil {
		return notConfirmed(err, time.Until(until))
	}
	return nil
}

// notYetAnew is a service that has to start anew and has not yet, or nothing. services is what
// topic "services" shows.
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

// await looks at a machine until there is nothing that it waits for. look says what it sees by
// calling its last argument, as often as that changes, and returns what that returns.
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
		return each(stream.Recv, func(s *api.TopicValue) error {
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
