package main

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// convergence is the result of the latest reconciliation of a configuration (reconcile.go).
type convergence struct {
	config *config.Config // its configuration, compared by identity; nil: none
	done   bool           // false before the first reconciliation
	// end of the first reconciliation of this configuration, or of the first successful
	// reconciliation
	first    time.Time
	failures []string // failures, one per line: "host: cannot load kernel modules x: …"
}

// convergeTimeout is the time for which a call waits for the operations of its configuration.
// Longer operations continue after the answer.
const convergeTimeout = time.Minute

// failureGracePeriod is the time in which a failure may disappear before it is reported.
const failureGracePeriod = 5 * time.Second

// failuresOf returns the lines of a joined error.
func failuresOf(err error) (lines []string) {
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// awaitConverged waits until the operations of a configuration were tried, and returns the
// failures.
func (m *machine) awaitConverged(ctx context.Context, c *config.Config, before network.Config) []string {
	ctx, cancel := context.WithTimeout(ctx, convergeTimeout)
	defer cancel()
	s, err := cell.Wait(ctx, m.convergence, func(s convergence) bool { return s.done && s.config == c })
	if err != nil {
		if now, _ := m.config.Get(); now.config != c {
			return []string{"configuration: another one became active meanwhile"}
		}
		return []string{"configuration: its operations are not done after " + convergeTimeout.String() + "; `orlopctl get drift` shows the remaining ones"}
	}
	// The cause may disappear in a moment: only a lasting failure counts.
	if len(s.failures) > 0 {
		soon, stop := context.WithTimeout(ctx, failureGracePeriod)
		defer stop()
		if later, _ := cell.Wait(soon, m.convergence, func(s convergence) bool { return s.config == c && len(s.failures) == 0 }); later.config == c {
			s = later
		}
	}
	failures := slices.Clone(s.failures)
	if !reflect.DeepEqual(before, nodeplan.Network(c)) {
		if err := m.awaitNetwork(ctx, c); err != nil {
			failures = append(failures, m.networkFailures()...)
		}
	}
	return failures
}

// networkFailures returns why the network differs from the configuration.
func (m *machine) networkFailures() (lines []string) {
	state, _ := m.networkState.Get()
	for _, p := range state.Problems {
		lines = append(lines, "network: "+p)
	}
	if lines == nil {
		lines = []string{"network: not converged to the configuration yet; `orlopctl get network` shows its state"}
	}
	return lines
}

// configurationProblem returns the failed operations of the active configuration, for the health;
// empty if none. The network performs its operations by itself: its state contains the failed
// operations, and a missing link counts as a failure.
func configurationProblem(now applied, s convergence, state network.State) string {
	if now.config == nil || s.config != now.config {
		return ""
	}
	failures := slices.Clone(s.failures)
	for _, name := range transition.LinkSelectors(now.config) {
		is := func(l network.LinkState) bool { return l.Name == name || l.MAC == name }
		if len(state.Links) > 0 && !slices.ContainsFunc(state.Links, is) {
			failures = append(failures, "network: cannot configure link "+name+": it does not exist")
		}
	}
	for _, problem := range state.Failed {
		failures = append(failures, "network: "+problem)
	}
	if len(failures) == 0 {
		return ""
	}
	return "operations fail: " + strings.Join(failures, "; ")
}

// next returns the convergence after a reconciliation of a configuration with these failures.
func (s convergence) next(c *config.Config, failures []string, at time.Time) convergence {
	next := convergence{config: c, done: true, first: at, failures: failures}
	if s.done && s.config == c && (len(s.failures) == 0 || len(failures) > 0) {
		next.first = s.first
	}
	return next
}

// newerMargin is the minimum age difference between a connection and the activation that it proves:
// apid and machined read the clock at different times.
const newerMargin = time.Second

// proves reports whether a connection of an age, in milliseconds as sent by apid, was opened after
// the activation of a configuration: an older connection continues even if no new connection can be
// opened. A call without an age did not come from apid.
func (s convergence) proves(c *config.Config, age string, now time.Time) bool {
	if s.config != c || !s.done {
		return false
	}
	ms, err := strconv.ParseInt(age, 10, 64)
	return age == "" || err == nil && now.Add(-time.Duration(ms)*time.Millisecond).After(s.first.Add(newerMargin))
}
