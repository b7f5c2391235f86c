package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// How the node is drained before the machine starts another version, rolls back, or is reset. The
// orchestrator evicts the pods (orchestrator/drain), and uncordons the node by itself after the
// boot.

// drainReserve is the time of the orchestrator in addition to the timeout for the pods, to start
// and to uncordon the node after a failure.
const drainReserve = 30 * time.Second

// drainConfig returns the drain policy of the active configuration, and reports whether a drain is
// configured. A removed machine has no pods to evict and no API server to call.
func (m *machine) drainConfig() (config.Drain, bool) {
	now, _ := m.config.Get()
	member, _ := m.members.Worker.State.Get()
	if member.Removed || now.config == nil || now.config.Cluster == nil {
		return config.Drain{}, false
	}
	want := now.config.Machine.Spec.Upgrade.Drain
	return want, want.Policy != config.DrainNone
}

// drain drains the node for a request of an operator, if the configuration wants it. It continues
// if the operator disconnects.
func (m *machine) drain() error {
	want, drains := m.drainConfig()
	if !drains {
		return nil
	}
	m.beginOperation("drain the node", 0)
	defer m.beginOperation("", 0)
	return m.drainWith(m.runCtx, want)
}

// uncordon makes the node schedulable again, because the operation that needed the drain did not
// happen.
func (m *machine) uncordon() {
	if _, drains := m.drainConfig(); !drains {
		return
	}
	if _, err := m.drainNode(m.runCtx, nodespec.DrainRequest{Timeout: drainReserve, Undo: true}); err != nil {
		m.events.add("upgrade", "failure", "cannot uncordon the node: "+err.Error()+"; use `kubectl uncordon`")
	}
}

// drainWith drains the node. It fails only if the policy is to respect the objects that block an
// eviction.
func (m *machine) drainWith(ctx context.Context, want config.Drain) error {
	request := nodespec.DrainRequest{
		Timeout: time.Duration(want.Timeout), Refuse: want.Policy == config.DrainRespect, Delete: want.Policy == config.DrainForce,
	}
	done, err := m.drainNode(ctx, request)
	if done.Refused {
		err = fmt.Errorf("drain not complete within %v: %s", request.Timeout, strings.Join(done.Remaining, "; "))
	}
	switch {
	case err != nil && request.Refuse:
		if !done.Refused { // the drain may not have reached the uncordon of its own
			m.uncordon()
		}
		return err
	case err != nil:
		m.events.add("upgrade", "failure", "cannot evict the pods: "+err.Error())
	default:
		m.events.add("upgrade", "operation", strings.Join(append([]string{fmt.Sprintf("%d pods evicted", done.Evicted)}, done.Remaining...), "; "))
	}
	return nil
}

func (m *machine) drainNode(ctx context.Context, request nodespec.DrainRequest) (nodespec.DrainResult, error) {
	ctx, cancel := context.WithTimeout(ctx, request.Timeout+drainReserve)
	defer cancel()
	return runCommand[nodespec.DrainResult](ctx, m, 0, "drain", request)
}
