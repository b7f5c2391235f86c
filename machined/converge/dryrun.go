package converge

import (
	"context"
	"errors"

	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/pkg/config"
)

// DryRun is the operations that the activation of a configuration would perform.
type DryRun struct {
	Operations []string // "host: load kernel modules x"
	Restarts   []string // services that restart
	Warnings   []string // differences that no operation removes
}

// DryRun returns the operations of every domain for the next configuration.
func (r *Reconciler) DryRun(ctx context.Context, next *config.Config) (DryRun, error) {
	var out DryRun
	state, _ := r.deps.Domains.Network.State.Get()
	g := r.goal(next, state)
	g.dry = true
	err := out.addDomains(ctx, r.domains(), g)
	return out, err
}

// addDomains adds the operations of every domain.
func (o *DryRun) addDomains(ctx context.Context, all []domain, g goal) error {
	for _, d := range all {
		ops, remarks, err := d.read(ctx, g)
		if errors.Is(err, drift.ErrAbsent) {
			continue
		}
		if err != nil {
			return err
		}
		for _, op := range ops {
			for _, line := range details(op) {
				o.Operations = append(o.Operations, d.name+": "+line)
			}
			if s, ok := op.(serviceChange); ok && s.Kind == "restart" {
				o.Restarts = append(o.Restarts, s.Service)
			}
		}
		o.Warnings = append(o.Warnings, remarks...)
	}
	return nil
}
