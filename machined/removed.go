package main

import (
	"context"
	"errors"
	"os"

	"github.com/orlop-os/orlop/pkg/paths"
)

// How a removed worker stops its pods and its node (recordRemoved). Its pods are created again on
// other machines, so its own pods stop in order. Its node stops too: it would keep calling an API
// server that rejects it. The worker retains its data, its configuration and its API, and continues
// with them after it joins again (docs/decisions/0028-joining.md).

// runRemoval stops pods and node whenever the machine learns that it was removed.
func (m *machine) runRemoval(ctx context.Context) {
	for w := m.membership.Watch(); ; {
		s, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		if !s.Removed || s.PodsStopped {
			continue
		}
		m.events.add("membership", "operation", "stopping its pods and its node: "+s.Problem)
		ending, cancel := context.WithTimeout(ctx, defaultGracePeriod)
		err = m.stopPods(ending)
		cancel()
		// the remaining pods have neither a kubelet nor an API server
		if err != nil && !errors.Is(err, context.Canceled) {
			m.events.add("membership", "failure", "cannot stop all pods: "+err.Error())
		}
		// The objects with which the pods would start again, including Secrets.
		if err := os.RemoveAll(paths.OfflineAPI); err != nil {
			m.events.add("membership", "failure", err.Error())
		}
		m.membership.Update(func(now membershipState) membershipState {
			now.PodsStopped = now.Removed && now.certs.machine == s.certs.machine
			return now
		})
	}
}
