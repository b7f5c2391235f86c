package converge

import (
	"context"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// convergeTimeout is the time for which a call waits for the operations of its configuration.
// Longer operations continue after the answer.
const convergeTimeout = time.Minute

// failureGracePeriod is the time in which a failure may disappear before it is reported.
const failureGracePeriod = 5 * time.Second

// AwaitConverged waits until the operations of the configuration c were tried, and returns the
// failures. before is the network configuration that was active before c. If c has the same network
// configuration, AwaitConverged does not wait for the network.
func (r *Reconciler) AwaitConverged(ctx context.Context, c *config.Config, before network.Config) []string {
	ctx, cancel := context.WithTimeout(ctx, convergeTimeout)
	defer cancel()
	s, err := cell.Wait(ctx, r.state, func(s State) bool { return s.Done && s.Config == c })
	if err != nil {
		if now, _ := r.deps.Config.Get(); now.Config != c {
			return []string{"configuration: another one became active meanwhile"}
		}
		return []string{"configuration: its operations are not done after " + convergeTimeout.String() + "; `orlopctl get drift` shows the remaining ones"}
	}
	// The cause may disappear soon, so only a failure that lasts is returned.
	if len(s.Failures) > 0 {
		soon, stop := context.WithTimeout(ctx, failureGracePeriod)
		defer stop()
		if later, _ := cell.Wait(soon, r.state, func(s State) bool { return s.Config == c && len(s.Failures) == 0 }); later.Config == c {
			s = later
		}
	}
	failures := slices.Clone(s.Failures)
	if !reflect.DeepEqual(before, nodeplan.Network(c)) {
		if err := r.AwaitNetwork(ctx, c); err != nil {
			failures = append(failures, r.networkFailures()...)
		}
	}
	return failures
}

// networkFailures returns why the network differs from the configuration.
func (r *Reconciler) networkFailures() (lines []string) {
	state, _ := r.deps.Domains.Network.State.Get()
	for _, p := range state.Problems {
		lines = append(lines, "network: "+p)
	}
	if lines == nil {
		lines = []string{"network: not converged to the configuration yet; `orlopctl get network` shows its state"}
	}
	return lines
}

// networkTimeout bounds the convergence of the network to a configuration.
const networkTimeout = 20 * time.Second

// AwaitNetwork waits until the network has converged to a configuration.
func (r *Reconciler) AwaitNetwork(ctx context.Context, c *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	want, revision := nodeplan.Network(c), uint64(0)
	for w := r.deps.Domains.Network.Config.Watch(); ; {
		have, next, err := w.Next(ctx)
		if err != nil {
			return errNetworkNotReady
		}
		if reflect.DeepEqual(have, want) {
			revision = next
			break
		}
	}
	for w := r.deps.Domains.Network.State.Watch(); ; {
		state, _, err := w.Next(ctx)
		if err != nil {
			return errNetworkNotReady
		}
		if state.Revision >= revision && networkReady(state, want) {
			return nil
		}
	}
}

// networkReady reports whether the network has converged, with a lease on each connected link with
// DHCP, and an address if a link accepts router advertisements. If the configuration names no link,
// all links use DHCP, but few machines have a server on each link, so a single address is enough.
func networkReady(state network.State, c network.Config) bool {
	if len(c.Links) == 0 {
		return state.Converged && len(state.NodeAddresses(nil)) > 0
	}
	waits := func(l network.LinkState) bool {
		return l.Carrier && (l.DHCP != nil && l.DHCP.Lease == nil || l.DHCP6 != nil && l.DHCP6.Lease == nil)
	}
	advertised := slices.ContainsFunc(c.Links, func(l network.LinkConfig) bool { return l.IPv6.AcceptRA })
	return state.Converged && !slices.ContainsFunc(state.Links, waits) && (!advertised || len(state.NodeAddresses(nil)) > 0)
}

var errNetworkNotReady = status.Errorf(codes.Unavailable, "configuration: not confirmed: the network has not converged after %v; `orlopctl get network` says why; try again", networkTimeout)
