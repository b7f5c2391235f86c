package rotation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/trial"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// rollout applies the steps of a rotation to the machines of a fleet, machine by machine.
type rollout struct {
	ios             *iostreams.Streams
	conn            *connect.Connector
	file            string // path of the file with the cluster's secrets
	dryRun, oneStep bool

	secrets *gen.Secrets
	fleet   *connect.Fleet
	// roles are the roles of the machines, in the order of the fleet. The slice is empty until the
	// rotation has read the roles.
	roles []machineRole
}

// rotation is the replacement of a key or a CA of a cluster. Three steps take each machine through
// four states (state.go). In stateBefore, the machine does not know the new value. In accepted, it
// accepts the new value. In issues, it issues or encrypts with the new value. In newOnly, it has
// dropped the old value.
type rotation interface {
	// begin reads the new value from the file of secrets. If the file has none, begin makes it and
	// stores it in the file before a machine gets it.
	begin(ctx context.Context) error
	// readStates reads the states of all machines.
	readStates(ctx context.Context) error
	// state returns the state of machine i of the fleet. It returns false if the machine takes no
	// part in the rotation.
	state(i int) (state, bool)
	// waitEffective waits until the state `reached` is effective on all machines. It then prepares
	// the next step: for example, it adds a new CA to the contexts.
	waitEffective(ctx context.Context, reached state) error
	// request returns the request for the next step of machine i. apply sends this request and
	// waits until the step is complete.
	request(i int, mode api.ApplyRequest_Mode) (*api.ApplyRequest, error)
	apply(ctx context.Context, i int) error
	// finish replaces the old value in the local files.
	finish() error
	// stepName returns the name of the step to a state.
	stepName(to state) string
	newValue() string // name of the new value
}

// flags adds the flags that all rotations have. The parameter `what` is "CA" or "key".
func (r *rollout) flags(f *pflag.FlagSet, what string) {
	f.StringVar(&r.file, "secrets", "secrets.yaml", "file with the cluster's secrets; the command adds the new "+what+" to the file, and replaces the old "+what+" at the end")
	f.BoolVar(&r.dryRun, "dry-run", false, "change nothing, only list the next steps and their operations")
	f.BoolVar(&r.oneStep, "one-step", false, "perform only the next step, on every machine")
}

// run performs the remaining steps of a rotation. With --dry-run it only prints them.
func (r *rollout) run(rot rotation) (err error) {
	ctx, stop := connect.Interruptible()
	defer stop()
	if r.secrets, err = gen.ReadSecrets(r.file); err != nil {
		return err
	}
	if r.fleet, err = r.conn.Fleet(); err != nil {
		return err
	}
	defer r.fleet.Close()
	if err := rot.begin(ctx); err != nil {
		return err
	}
	for taken := false; ; taken = true {
		if err := rot.readStates(ctx); err != nil {
			return err
		}
		steps := r.steps(rot)
		if r.dryRun {
			return r.print(ctx, rot, steps)
		}
		// at is the state that all machines have reached. If no step remains, it is newOnly.
		// Otherwise it is the state before the first remaining step.
		at := newOnly
		if len(steps) > 0 {
			at = steps[0].to - 1
		}
		if taken && r.oneStep && at != newOnly {
			r.ios.Printf("stopped after one step; the same command performs the next step %q\n", rot.stepName(at+1))
			return nil
		}
		// All machines have reached the state `at`, in this run or in an earlier run.
		if at > stateBefore {
			if err := rot.waitEffective(ctx, at); err != nil {
				return err
			}
		}
		if at == newOnly {
			return rot.finish()
		}
		r.ios.Printf("step %d of 3: %s %s\n", at+1, rot.stepName(at+1), rot.newValue())
		// `orlopctl approval request` records a call in place of sending it (ErrRecorded). The loop
		// then continues, so the calls to all machines are recorded.
		recorded := false
		for _, i := range steps[0].machines {
			err := rot.apply(ctx, i)
			if recorded = recorded || errors.Is(err, connect.ErrRecorded); err != nil && !errors.Is(err, connect.ErrRecorded) {
				return withMachine(r.fleet.Names[i], err)
			}
		}
		if recorded {
			return connect.ErrRecorded
		}
	}
}

// steps returns the remaining steps of all machines.
func (r *rollout) steps(rot rotation) []plannedStep {
	all := make([]progress, len(r.fleet.Names))
	for i := range all {
		all[i].at, all[i].takesPart = rot.state(i)
	}
	return plan(order(len(all), r.roles), all)
}

// print prints the remaining steps with their machines, and the operations of the next step.
func (r *rollout) print(ctx context.Context, rot rotation, steps []plannedStep) error {
	if len(steps) == 0 {
		r.ios.Println("the machines have performed every step; still to update: the file of secrets and your context")
		return nil
	}
	for n, step := range steps {
		r.ios.Printf("step %d of 3: %s\n", step.to, rot.stepName(step.to))
		for _, i := range step.machines {
			r.ios.Println("  machine " + r.fleet.Names[i])
			if n > 0 {
				continue
			}
			if err := r.printOperations(ctx, rot, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// printOperations prints the operations of the next step of machine i.
func (r *rollout) printOperations(ctx context.Context, rot rotation, i int) error {
	request, err := rot.request(i, api.ApplyRequest_MODE_DRY_RUN)
	if err != nil {
		return err
	}
	err = r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) error {
		answer, err := c.Config.Apply(ctx, request)
		for _, op := range answer.GetOperations() {
			r.ios.Println("    " + op)
		}
		return err
	})
	if err != nil {
		return withMachine(r.fleet.Names[i], err)
	}
	return nil
}

// performStep performs a step on machine i, and confirms its trial. It waits for the services that
// restart because of the step. It returns the operations that the machine reports.
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
	// The step on the next machine begins only when this machine is healthy: while a machine
	// restarts its services, the other machines have to serve.
	return operations, r.healthy(ctx, i)
}

// confirm confirms the trial of the new configuration on machine i. Each attempt uses new
// connections to the machine and to the relay, because the step changes the trusted CAs.
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

// withMachine adds the name of the machine to an error, unless the error contains it.
func withMachine(name string, err error) error {
	if strings.HasPrefix(err.Error(), "machine ") {
		return err
	}
	return fmt.Errorf("machine %s: %w", name, err)
}
