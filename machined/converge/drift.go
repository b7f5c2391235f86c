package converge

import (
	"context"
	"errors"
	"strings"

	"github.com/orlop-os/orlop/machined/drift"
)

// DriftSources returns the sources of drift: the configuration itself, then each domain of the
// machine. No source reveals a secret: operations name files and parameters, and operations that
// write keys do not show the content.
func (r *Reconciler) DriftSources() []drift.Source {
	sources := []drift.Source{{Name: "configuration", Diff: r.configurationDrift}}
	for _, d := range r.domains() {
		sources = append(sources, drift.Source{Name: d.name, Diff: func(ctx context.Context) ([]string, error) { return r.driftOf(ctx, d) }})
	}
	return sources
}

// DriftEpoch changes with the active configuration, and with every reconciliation.
func (r *Reconciler) DriftEpoch() uint64 {
	_, configured := r.deps.Config.Get()
	_, settled := r.state.Get()
	return configured + settled
}

// configurationDrift returns the operation of activating the configuration while no reconciliation
// with it has ended, and the failures of the last reconciliation, in all domains, as an error.
func (r *Reconciler) configurationDrift(context.Context) ([]string, error) {
	if r.deps.Stopping() {
		return nil, drift.ErrAbsent
	}
	now, _ := r.deps.Config.Get()
	s, _ := r.state.Get()
	if s.Config != now.Config {
		return []string{"activate the configuration"}, nil
	}
	if len(s.Failures) > 0 {
		return nil, errors.New(strings.Join(s.Failures, "; "))
	}
	return nil, nil
}

// driftOf returns the operations of a domain for the active configuration. There is no drift during
// a shutdown.
func (r *Reconciler) driftOf(ctx context.Context, d domain) ([]string, error) {
	if r.deps.Stopping() {
		return nil, drift.ErrAbsent
	}
	now, _ := r.deps.Config.Get()
	state, _ := r.deps.Domains.Network.State.Get()
	return d.drift(ctx, r.goal(now.Config, state))
}
