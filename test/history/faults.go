package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/vm"
)

// fault is a fault of one or more machines for a limited time.
type fault struct {
	What     string        `json:"what"`
	Machines []string      `json:"machines"`
	Lasts    time.Duration `json:"lasts"`
}

func (f fault) String() string { return f.What + " " + strings.Join(f.Machines, ", ") }

// The kinds of faults.
const (
	cut      = "power cut"
	blackout = "power cut of all"
	isolate  = "network cut"
	freeze   = "freeze" // a machine is paused and resumed; its clock then shows an old time
)

// The duration of a fault is in the time of the machines. It is at least the duration of a leader
// election of etcd, and at most the duration of a boot.
const (
	shortest = 5 * time.Second
	longest  = 40 * time.Second
)

// draw returns a random fault. The probability of a blackout, which affects all machines, is one in
// ten. The other kinds have equal probabilities and affect one machine.
func draw(dice *rand.Rand, machines []string) fault {
	f := fault{Lasts: shortest + time.Duration(dice.Int64N(int64(longest-shortest)))}
	if dice.IntN(10) == 0 {
		f.What, f.Machines = blackout, machines
		return f
	}
	f.What = []string{cut, isolate, freeze}[dice.IntN(3)]
	f.Machines = []string{machines[dice.IntN(len(machines))]}
	return f
}

// power has the methods of vm.Client that this package uses.
type power interface {
	Act(ctx context.Context, machine string, action vm.Action) error
	SetFaults(ctx context.Context, name string, f vm.Faults) error
}

// inflict causes the fault, waits for its duration, and undoes the fault. If ctx ends, it undoes
// the fault at once.
func (f fault) inflict(ctx context.Context, p power, clock vm.Clock) error {
	for _, m := range f.Machines {
		if err := f.apply(ctx, p, m); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	select {
	case <-time.After(clock.Outside(f.Lasts)):
	case <-ctx.Done():
	}
	for _, m := range slices.Backward(f.Machines) {
		if err := f.undo(context.WithoutCancel(ctx), p, m); err != nil {
			return fmt.Errorf("%s: cannot undo: %w", f, err)
		}
	}
	return nil
}

func (f fault) apply(ctx context.Context, p power, machine string) error {
	switch f.What {
	case isolate:
		return p.SetFaults(ctx, machine, vm.Faults{Down: true})
	case freeze:
		return p.Act(ctx, machine, vm.ActionPause)
	}
	return p.Act(ctx, machine, vm.ActionPowerCut)
}

func (f fault) undo(ctx context.Context, p power, machine string) error {
	switch f.What {
	case isolate:
		return p.SetFaults(ctx, machine, vm.Faults{})
	case freeze:
		return p.Act(ctx, machine, vm.ActionResume)
	}
	return p.Act(ctx, machine, vm.ActionPowerOn)
}
