package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// What a worker does that was taken out of its cluster, and knows it (noteRemoved): its pods are
// made anew elsewhere, so those here end, in order, and its node stops, which would go on asking an
// API server that lets it in no more. It keeps its data, its configuration and its door, and is
// what it was when it is invited anew (docs/decisions/0028-joining.md).

// followRemoval ends pods and node whenever the machine learns that it was taken out.
func (m *machine) followRemoval(ctx context.Context) {
	for w := m.membership.Watch(); ; {
		s, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		if !s.Removed || s.Ended {
			continue
		}
		m.events.add("membership", "op", "its pods end, and its node stops: "+s.Problem)
		ending, cancel := context.WithTimeout(ctx, defaultGrace)
		err = m.stopPods(ending)
		cancel()
		// whatever is left has neither a kubelet nor an API server
		if err != nil && !errors.Is(err, context.Canceled) {
			m.events.add("membership", "failure", "not all pods have ended: "+err.Error())
		}
		// What they would have started with again, Secrets among it.
		if err := os.RemoveAll(paths.OfflineAPI); err != nil {
			m.events.add("membership", "failure", err.Error())
		}
		m.membership.Update(func(now membershipState) membershipState {
			now.Ended = now.Removed && now.held.machine == s.held.machine
			return now
		})
	}
}

// withoutNode are the services of a worker that was taken out.
func withoutNode(services []supervise.Service) []supervise.Service {
	return slices.DeleteFunc(services, func(s supervise.Service) bool { return s.Name == serviceNode })
}
