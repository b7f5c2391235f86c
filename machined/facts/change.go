package facts

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Change is a requested change of the configuration.
type Change struct {
	Before *config.Config // active configuration; nil if there is none
	// Fallback is the configuration to which a trial would revert; nil if there is none.
	Fallback *config.Config
	OnTrial  bool // the active configuration is on trial
	Request  *api.ApplyRequest
}

// Transition returns the facts on which the change to the next configuration depends. The caller is
// in the context.
func (r *Reader) Transition(ctx context.Context, change Change, next *config.Config) (f transition.Facts, err error) {
	f = transition.Facts{
		Request: change.Request, Trial: transition.PlanTrial(change.Fallback, next, change.Request), OnTrial: change.OnTrial, Now: time.Now(),
		Upgrade: r.deps.Undecided(), Machine: r.capacity(next),
	}
	if f.Caller, err = Caller(ctx, next); err != nil {
		return f, err
	}
	f.Hardware, err = r.hardware(change.Before, next)
	return f, err
}

// CheckMachine rejects a configuration that this machine cannot run at present.
func (r *Reader) CheckMachine(next *config.Config) error {
	return transition.CheckMachine(next, r.capacity(next)).Err()
}

// capacity returns the facts on which the machine's ability to run a configuration depends.
func (r *Reader) capacity(next *config.Config) transition.Machine {
	hardware := r.deps.System.Hardware()
	f := transition.Machine{
		Memory: hardware.Memory, CPUs: hardware.CPUs, InMemory: r.deps.System.InMemory, NoStorage: r.deps.System.StorageProblem(),
		Parts: r.deps.Volumes.Parts(), Addresses: nodeplan.Addresses(next, r.deps.Network()),
	}
	if next.Cluster != nil && !next.IsWorker() { // a worker holds no CA keys
		_, f.CAs = nodeplan.CAs(next.Cluster)
	}
	return f
}

// Caller returns the facts about the caller in the context.
func Caller(ctx context.Context, next *config.Config) (transition.Caller, error) {
	f := transition.Caller{CA: api.CallerFromContext(ctx).Issuer}
	if f.CA == "" { // the caller is not an operator
		return f, nil
	}
	list, err := ownership.Operators(next)
	if err == nil && len(list) > 0 {
		f.Operators, err = pki.ParseCerts(list)
	}
	return f, err
}

// hardware compares the links, kernel parameters and modules of the next configuration with those
// of this machine.
func (r *Reader) hardware(before, next *config.Config) (f transition.Hardware, err error) {
	if f.MissingLinks, f.PresentLinks, err = r.deps.Links.MissingLinks(nodeplan.Network(next)); err != nil {
		return f, fmt.Errorf("network: cannot list links: %w", err)
	}
	f.KnownLinks = transition.LinkSelectors(before)
	if f.TakenLinks, err = r.deps.Links.TakenLinks(nodeplan.Network(before), nodeplan.Network(next)); err != nil {
		return f, fmt.Errorf("network: cannot list links: %w", err)
	}
	f.Unusable, err = r.deps.System.Kernel.Unusable(r.HostConfig(before), r.HostConfig(next))
	return f, err
}
