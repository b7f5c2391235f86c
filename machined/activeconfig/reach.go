package activeconfig

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
)

// A configuration with which the machine never had an address cannot be corrected over the network.
// After reachTimeout the machine returns to the last configuration with which it had an address.
// STATE records whether the machine ever had an address with its configuration
// (configstore.Store.LastReachable). So a cable that is unplugged later, or a later boot without a
// network, causes no return.

const (
	reachTimeout = 10 * time.Minute
	reachRetry   = time.Minute // after a failed return
)

// reachInput is the observation from which reachState.step decides.
type reachInput struct {
	now    time.Time
	config *config.Config // active configuration, compared by pointer; nil: none
	// the system is installed, its storage works, and neither the configuration nor the version is
	// on trial
	decided     bool
	hadAddress  bool // the machine has had an address with config, in this or in an earlier boot
	hasAddress  bool // the machine has an address now
	hasFallback bool // another configuration exists to which it can return
}

// reachState is the time since which the machine has had no address with a configuration.
type reachState struct {
	config *config.Config
	since  time.Time
}

// reachAction is the action that is due.
type reachAction int

const (
	reachNone   reachAction = iota
	reachRecord             // record that the machine has had an address with the configuration
	// return to the last configuration with which the machine had an address
	reachReturn
)

// step returns the action that is due for an observation, and the time until the next step if the
// observation does not change (0: no next step). The time without an address starts again at every
// boot. step is pure.
//
//	configuration          address   action
//	none, or undecided     -         none; the time does not run
//	had an address before  -         none, with or without an address
//	never had one          yes       reachRecord
//	never had one          no        none for reachTimeout, then reachReturn with a fallback
func (r reachState) step(in reachInput) (reachState, reachAction, time.Duration) {
	switch {
	case in.config == nil || !in.decided || in.hadAddress:
		return reachState{}, reachNone, 0
	case in.hasAddress:
		return reachState{}, reachRecord, 0
	case r.config != in.config:
		r = reachState{config: in.config, since: in.now}
	}
	left := reachTimeout - in.now.Sub(r.since)
	switch {
	case !in.hasFallback:
		return r, reachNone, 0
	case left > 0:
		return r, reachNone, left
	}
	r.since = in.now.Add(reachRetry - reachTimeout)
	return r, reachReturn, reachRetry
}

// hasAddress reports whether the machine is reachable in a network state: it has a global address
// on a managed link that is up and connected. The address of a dummy or a tunnel is ignored,
// because the machine has this address without any connection.
func hasAddress(s network.State) bool {
	return slices.ContainsFunc(s.Links, func(l network.LinkState) bool {
		return l.Managed && l.Up && l.Carrier && s.Direct(l) && slices.ContainsFunc(l.Addresses, func(a network.AddressState) bool {
			return a.Unfit == "" && a.Prefix.Addr().IsGlobalUnicast()
		})
	})
}

// WatchReach watches whether the machine has an address with its configuration, and performs the
// actions of step, until ctx ends.
func (m *Manager) WatchReach(ctx context.Context) {
	var r reachState
	var act reachAction
	for configs, states := m.cell.Watch(), m.deps.Network.State.Watch(); ; {
		now, state := configs.Current(), states.Current()
		in := m.reachInput(now, state)
		var rest time.Duration
		r, act, rest = r.step(in)
		switch act {
		case reachNone:
		case reachRecord:
			if err := m.recordReached(now); err != nil {
				m.deps.Event("failure", err.Error())
				rest = reachRetry
			}
		case reachReturn:
			if err := m.returnToReached(now); err != nil {
				m.deps.Console(err.Error())
			}
		}
		var later <-chan time.Time
		if rest > 0 {
			later = time.After(rest)
		}
		select {
		case <-configs.Changed():
		case <-states.Changed():
		case <-later:
		case <-ctx.Done():
			return
		}
	}
}

// reachInput returns the observation for step.
func (m *Manager) reachInput(now Active, state network.State) reachInput {
	in := reachInput{now: time.Now(), config: now.Config}
	why := m.deps.StorageProblem()
	in.decided = !now.OnTrial() && m.deps.Undecided() == nil && !m.deps.InMemory && why == ""
	if now.Config == nil || !in.decided {
		return in
	}
	want, revision := m.deps.Network.Config.Get()
	// Until the network has converged to this configuration, the state belongs to the previous
	// configuration.
	in.hasAddress = reflect.DeepEqual(want, nodeplan.Network(now.Config)) && state.Revision >= revision && hasAddress(state)
	var err error
	if _, in.hadAddress, err = m.deps.Store.LastReachable(); err != nil {
		in.hadAddress = true // on an error, the machine stays with this configuration
		return in
	}
	_, err = m.lastReached(now.Config)
	in.hasFallback = err == nil
	return in
}

// lastReached returns the documents of the last configuration with which the machine had an
// address. It puts the present encryption keys into them, so that they can replace the present
// documents.
func (m *Manager) lastReached(present *config.Config) ([]byte, error) {
	text, current, err := m.deps.Store.LastReachable()
	switch {
	case err != nil:
		return nil, err
	case text == nil || current:
		return nil, fmt.Errorf("configuration: there is no other one with which the machine had an address")
	}
	if text, err = transition.WithPresentKeys(text, config.Marshal(present)); err != nil {
		return nil, err
	}
	c, problems := config.Parse("", text)
	if len(problems) > 0 {
		return nil, fmt.Errorf("configuration: the last one with which the machine had an address cannot be read by this version: %w", problems)
	}
	return text, transition.CheckFixed(present, c, time.Now()).Err()
}

// recordReached records that the machine has had an address with a configuration, if this
// configuration is still active.
func (m *Manager) recordReached(a Active) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.Current(); now.Config != a.Config || now.OnTrial() {
		return nil
	}
	text, err := m.deps.Store.Confirmed()
	// text is nil if the configuration is part of the image; every version contains it, so it needs
	// no record
	if err != nil || text == nil {
		return err
	}
	return m.deps.Store.MarkReachable(text)
}

// returnToReached activates the last configuration with which the machine had an address, if the
// configuration a, without an address, is still active.
func (m *Manager) returnToReached(a Active) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Current()
	if now.Config != a.Config || now.OnTrial() {
		return nil
	}
	text, err := m.lastReached(now.Config)
	if err == nil {
		err = m.deps.Store.Put(text)
	}
	if err == nil {
		// record text, which has the present encryption keys, in place of the documents with former
		// keys
		err = m.deps.Store.MarkReachable(text)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot return to the last one with which the machine had an address: %w", err)
	}
	m.deps.Console(fmt.Sprintf("configuration: the machine had no address with this one in %v; the last one with an address is active again", reachTimeout))
	fresh, err := m.Reload()
	if err != nil {
		return nil // the configuration topic reports the problem
	}
	m.AddToHistory(fresh.Documents, "the machine, without an address with the previous one")
	if fresh.Config != nil && transition.NeedsReboot(now.Config, fresh.Config) {
		return m.deps.Reboot("to revert the kernel parameters or modules of a configuration without an address")
	}
	return nil
}
