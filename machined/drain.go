package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// How pods leave before the machine goes into another version, goes back, or is reset. The
// orchestrator evicts them (orchestrator/drain), and takes pods again by itself when the machine
// has come back.

// drainRest is what the orchestrator has beyond the time for the pods, to start and to take pods
// again after a failure.
const drainRest = 30 * time.Second

// drains is what the configuration in force says of pods that have to leave, and whether it wants
// that. A machine that was taken out has none that others would take, and nobody to ask.
func (m *machine) drains() (config.Drain, bool) {
	now, _ := m.config.Get()
	member, _ := m.membership.Get()
	if member.Removed || now.config == nil || now.config.Cluster == nil {
		return config.Drain{}, false
	}
	want := now.config.Machine.Spec.Upgrade.Drain
	return want, want.Policy != config.DrainNone
}

// leave drains the node for what an operator asked for, if the configuration wants it. It goes on
// when the operator is gone.
func (m *machine) leave() error {
	want, drains := m.drains()
	if !drains {
		return nil
	}
	m.begin("move the pods away", 0)
	defer m.begin("", 0)
	return m.drain(m.working, want)
}

// stay has the node take pods again, because what they left for did not happen.
func (m *machine) stay() {
	if _, drains := m.drains(); !drains {
		return
	}
	if _, err := m.drainNode(m.working, nodespec.DrainRequest{Timeout: drainRest, Undo: true}); err != nil {
		m.events.add("upgrade", "failure", "the node takes no pods: "+err.Error()+"; `kubectl uncordon` has it take some again")
	}
}

// drain moves the pods away. It fails only if the policy is to respect what does not let them go.
func (m *machine) drain(ctx context.Context, want config.Drain) error {
	order := nodespec.DrainRequest{
		Timeout: time.Duration(want.Timeout), Refuse: want.Policy == config.DrainRespect, Delete: want.Policy == config.DrainForce,
	}
	done, err := m.drainNode(ctx, order)
	if done.Refused {
		err = fmt.Errorf("not possible within %v: %s", order.Timeout, strings.Join(done.Remaining, "; "))
	}
	switch {
	case err != nil && order.Refuse:
		if !done.Refused { // it may not have come so far as to open the node
			m.stay()
		}
		return err
	case err != nil:
		m.events.add("upgrade", "failure", "pods are not moved away: "+err.Error())
	default:
		m.events.add("upgrade", "op", strings.Join(append([]string{fmt.Sprintf("%d pods moved away", done.Evicted)}, done.Remaining...), "; "))
	}
	return nil
}

func (m *machine) drainNode(ctx context.Context, order nodespec.DrainRequest) (nodespec.DrainResult, error) {
	ctx, cancel := context.WithTimeout(ctx, order.Timeout+drainRest)
	defer cancel()
	return ask[nodespec.DrainResult](ctx, m, 0, "drain", order)
}
