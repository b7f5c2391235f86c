package converge

import (
	"context"
	"errors"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// domain is an area of the machine with its own plan, diff and operations.
type domain struct {
	name string
	// want returns an error if the plan has no desired state for the domain: drift.ErrAbsent if the
	// machine does not have the domain at present. If want is nil, the domain always has a desired
	// state.
	want func(goal) error
	// diff reads the actual state and returns the operations that lead to the desired state.
	diff func(context.Context, goal) ([]reconcile.Op, error)
	// apply leads the domain to the goal; inOrder performs the operations of diff in order. If
	// apply is nil, the boot, the apply of a configuration or a task performs the operations, not
	// the reconciliation.
	apply func(ctx context.Context, g goal, inOrder func() error) error
	// remarks are lines about differences that no operation can remove; may be nil
	remarks   func(goal) ([]string, error)
	keepGoing bool // a failed operation does not stop the others
	// a failure ends the reconciliation, because the next domains need this domain; the next
	// domains share its plan
	gates bool
}

// applyInOrder is the function apply of a domain that only performs its operations.
func applyInOrder(_ context.Context, _ goal, inOrder func() error) error { return inOrder() }

// goal is a configuration to which the domains converge, with the desired state that follows from
// it.
type goal struct {
	config *config.Config // nil: none
	state  network.State

	network  network.Config
	host     host.Config
	firewall *firewall.Config // nil: it admits all packets
	guard    firewall.Guard
	// api and node read the ledger and STATE at their first call, so that only the domains that
	// call them wait for a STATE that hangs.
	api  func() apiGoal
	node func() nodeplan.Want

	// the configuration is not active yet: for a dry run
	dry bool
}

// apiGoal is the goal of the API.
type apiGoal struct {
	want      credentials.Want // valid only without a problem
	operators []byte           // CAs of the operators
	problem   error            // why want cannot be planned
}

// reported is an operation that another component performs.
type reported string

func (r reported) String() string { return string(r) }

// Do implements reconcile.Op.
func (reported) Do(context.Context) error { return nil }

// read returns the operations of a domain, and the remarks about it. An error comes with the
// operations that are known.
func (d domain) read(ctx context.Context, g goal) (ops []reconcile.Op, remarks []string, err error) {
	if d.want != nil {
		if err := d.want(g); err != nil {
			return nil, nil, err
		}
	}
	if ops, err = d.diff(ctx, g); err != nil {
		return nil, nil, err
	}
	if d.remarks != nil {
		remarks, err = d.remarks(g)
	}
	return ops, remarks, err
}

// details returns the lines of an operation in a dry run. An operation has one or more lines.
func details(op reconcile.Op) []string {
	if d, ok := op.(interface{ Details() []string }); ok {
		return d.Details()
	}
	return []string{op.String()}
}

// drift returns the operations of a domain. The error says why the operations are unknown, or which
// differences the operations do not remove.
func (d domain) drift(ctx context.Context, g goal) ([]string, error) {
	ops, remarks, err := d.read(ctx, g)
	problems := []error{err}
	for _, r := range remarks {
		problems = append(problems, errors.New(r))
	}
	return reconcile.Print(ops), errors.Join(problems...)
}

// convergeAll leads every domain to its goal. The goal is planned again for each domain, because a
// domain can depend on the operations of the domains before it; from the first domain with gates
// on, all domains share a plan.
func convergeAll(ctx context.Context, all []domain, plan func() goal, report func(reconcile.Report)) error {
	var problems []error
	var g goal
	gated := false
	for _, d := range all {
		if d.apply == nil {
			continue
		}
		if !gated {
			g = plan()
		}
		gated = gated || d.gates
		err := d.converge(ctx, g, report)
		problems = append(problems, err)
		if err != nil && d.gates {
			break
		}
	}
	return errors.Join(problems...)
}

// converge leads a domain to its goal.
func (d domain) converge(ctx context.Context, g goal, report func(reconcile.Report)) error {
	if d.want != nil {
		if err := d.want(g); errors.Is(err, drift.ErrAbsent) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return d.apply(ctx, g, func() error {
		return reconcile.Converge(ctx, reconcile.Config{
			Name: d.name, KeepGoing: d.keepGoing, Report: report,
			Diff: func(ctx context.Context) ([]reconcile.Op, error) { return d.diff(ctx, g) },
		})
	})
}
