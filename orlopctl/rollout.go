package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/trial"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// rollout applies the steps of a rotation to the machines of a fleet, one machine after the other.
type rollout struct {
	ios             *iostreams.Streams
	conn            *connect.Connector
	file            string // path of the file with the cluster's secrets
	dryRun, oneStep bool

	secrets *gen.Secrets
	fleet   *connect.Fleet
	// roles from the machines' configurations, in the order of the fleet; empty before they are
	// read
	planes []plane
}

// order returns the order of the machines in a step: control-plane machines first. A worker
// requests certificates from them as soon as it has performed the step, and certificates of the old
// CA would be useless to it.
func (r *rollout) order() []int {
	var first, then []int
	for i := range r.fleet.Names {
		if i < len(r.planes) && r.planes[i].controls {
			first = append(first, i)
		} else {
			then = append(then, i)
		}
	}
	return append(first, then...)
}

// rotation is the stepwise replacement of a key or CA of a cluster. Three steps take each machine
// through the states before, accepted, issues and newOnly (rotation.go).
type rotation interface {
	// begin reads the replacement from the file of secrets, or creates it and stores it there
	// before any machine gets it.
	begin(ctx context.Context) error
	// readStates reads the states of the machines.
	readStates(ctx context.Context) error
	// state returns the state of a machine; false if the machine does not take part.
	state(i int) (state, bool)
	// waitEffective waits until all machines work with the step that led to the state at. Then it
	// does the work that must precede the next step, for example it adds a new CA to the contexts.
	waitEffective(ctx context.Context, at state) error
	// request returns the next step of a machine, and apply performs it.
	request(i int, mode api.ApplyRequest_Mode) (*api.ApplyRequest, error)
	apply(ctx context.Context, i int) error
	// finish replaces the old value in the local files.
	finish() error
	// stepName returns the name of the step that leads to a state.
	stepName(to state) string
	what() string // name of the new value
}

// flags adds the flags of every rotation. what is the name of the value that the rotation replaces.
func (r *rollout) flags(f *pflag.FlagSet, what string) {
	f.StringVar(&r.file, "secrets", "secrets.yaml", "the cluster's secrets; the new "+what+" is added to the file, and replaces the old value at the end")
	f.BoolVar(&r.dryRun, "dry-run", false, "change nothing, only list the next steps and their operations")
	f.BoolVar(&r.oneStep, "one-step", false, "perform only the next step, on every machine")
}

// run performs the remaining steps of a rotation.
func (r *rollout) run(of rotation) (err error) {
	ctx, stop := connect.Interruptible()
	defer stop()
	if r.secrets, err = gen.ReadSecrets(r.file); err != nil {
		return err
	}
	if r.fleet, err = r.conn.Fleet(); err != nil {
		return err
	}
	defer r.fleet.Close()
	if err := of.begin(ctx); err != nil {
		return err
	}
	for taken := false; ; taken = true {
		if err := of.readStates(ctx); err != nil {
			return err
		}
		at := r.leastFar(of) // only machines in this state may take a step
		if r.dryRun {
			return r.plan(ctx, of, at)
		}
		if taken && r.oneStep && at != newOnly {
			r.ios.Printf("stopped after one step; the same command performs the next step %q\n", of.stepName(at+1))
			return nil
		}
		// at least one step was performed
		if at > before {
			if err := of.waitEffective(ctx, at); err != nil {
				return err
			}
		}
		if at == newOnly {
			return of.finish()
		}
		r.ios.Printf("step %d of 3: %s %s\n", at+1, of.stepName(at+1), of.what())
		for _, i := range r.order() {
			if is, has := of.state(i); has && is == at {
				if err := of.apply(ctx, i); err != nil {
					return withMachine(r.fleet.Names[i], err)
				}
			}
		}
	}
}

// leastFar returns the earliest state of any machine that takes part.
func (r *rollout) leastFar(of rotation) state {
	least := newOnly
	for i := range r.fleet.Names {
		if is, has := of.state(i); has {
			least = min(least, is)
		}
	}
	return least
}

// plan prints the remaining steps with their machines, and the operations of the next step.
func (r *rollout) plan(ctx context.Context, of rotation, at state) error {
	if at == newOnly {
		r.ios.Println("the machines have performed every step; the file of secrets and your context remain")
		return nil
	}
	for step := at + 1; step <= newOnly; step++ {
		r.ios.Printf("step %d of 3: %s\n", step, of.stepName(step))
		for _, i := range r.order() {
			name := r.fleet.Names[i]
			is, has := of.state(i)
			if !has || is >= step {
				continue
			}
			r.ios.Println("  machine " + name)
			if step > at+1 {
				continue
			}
			request, err := of.request(i, api.ApplyRequest_MODE_DRY_RUN)
			if err != nil {
				return err
			}
			if err := r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Apply(ctx, request)
				for _, op := range answer.GetOperations() {
					r.ios.Println("    " + op)
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

// performStep performs a step on one machine, waits for the services that restart because of it,
// and returns the operations that the machine reports.
func (r *rollout) performStep(ctx context.Context, i int, request *api.ApplyRequest) (operations []string, err error) {
	was := map[string]int32{}
	var restarts []string
	var applied *api.ApplyResponse
	request.TrialName = trial.NewName()
	err = r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) error {
		list, err := c.Service.List(ctx, &api.ListServicesRequest{})
		if err != nil {
			return err
		}
		for _, s := range list.Services {
			was[s.Name] = s.Pid
		}
		answer, err := c.Config.Apply(ctx, request)
		operations, restarts = answer.GetOperations(), answer.GetRestarts()
		applied = answer
		return err
	})
	if err == nil && applied.TrialDeadline != nil {
		err = r.confirm(ctx, i, request.TrialName, applied)
	}
	if err != nil {
		return nil, err
	}
	line := "  machine " + r.fleet.Names[i] + ": done"
	if len(restarts) > 0 {
		line += ", restarts: " + strings.Join(restarts, ", ")
	}
	r.ios.Println(line)
	err = r.awaitTopic(ctx, i, "services", func(text []byte) (string, error) { return notRestarted(text, was, restarts) })
	if err != nil || len(restarts) == 0 {
		return operations, err
	}
	// the next machine has to wait for this machine, so that the other machines serve meanwhile
	return operations, r.healthy(ctx, i)
}

// confirm confirms the trial of a machine. Each attempt uses a new connection to the machine, and
// to the machine that relays to it, because the step changes the trusted CAs.
func (r *rollout) confirm(ctx context.Context, i int, name string, answer *api.ApplyResponse) error {
	left := answer.TrialDuration.AsDuration()
	until := time.Now().Add(left)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	e, err := r.fleet.Endpoint(i)
	if err != nil {
		return err
	}
	c := &trial.Confirmation{Name: name, Endpoints: trial.EndpointsOf(e, nil), BeforeDial: r.fleet.CloseRelay}
	if err := c.Run(ctx); err != nil {
		return trial.NotConfirmed(err, time.Until(until))
	}
	return nil
}

// notRestarted returns a sentence about a service that still has to restart, or an empty string.
// services is the JSON value of the machine's topic "services", was contains the process IDs before
// the step, and restarts names the services to restart.
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

// await waits until a machine reaches a state. It connects and calls look; after a lost connection
// it does both again. look watches the machine and reports each change to its last argument: the
// reason why the state is not reached yet, or an empty string when it is reached. look ends when
// that function returns an error, and returns this error.
func (r *rollout) await(ctx context.Context, i int, look func(context.Context, *client.Client, func(waits string) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.conn.Timeout(rotationTimeout))
	defer cancel()
	var last string
	for {
		e, err := r.fleet.Endpoint(i)
		if err != nil {
			return err
		}
		c, err := r.fleet.Client(ctx, i, e)
		if err == nil {
			err = look(ctx, c, func(waits string) error {
				if last = waits; waits == "" {
					return errDone
				}
				return nil
			})
		}
		switch {
		case errors.Is(err, errDone):
			return nil
		case ctx.Err() == nil && !exit.IsTemporary(err):
			return err
		case !connect.Sleep(ctx, connect.DialInterval):
			return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("stopped before it was done: %s", last), Hint: "call it again: it continues in the same place"}
		}
	}
}

// errDone ends look in await when the state is reached.
var errDone = errors.New("the wait is over")

// awaitTopic is await for a topic of the machine, which it watches. waits returns, for a value of
// the topic, the reason why the state is not reached yet, or an empty string.
func (r *rollout) awaitTopic(ctx context.Context, i int, topic string, waits func([]byte) (string, error)) error {
	return r.await(ctx, i, func(ctx context.Context, c *client.Client, say func(string) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
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

// healthy waits until the machine is healthy.
func (r *rollout) healthy(ctx context.Context, i int) error {
	return r.await(ctx, i, func(ctx context.Context, c *client.Client, say func(string) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{})
		if err != nil {
			return err
		}
		return connect.Each(stream.Recv, func(h *api.HealthResponse) error {
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

// withMachine adds the name of the machine to an error, unless the error contains it.
func withMachine(name string, err error) error {
	if strings.HasPrefix(err.Error(), "machine ") {
		return err
	}
	return fmt.Errorf("machine %s: %w", name, err)
}
