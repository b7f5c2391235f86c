package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/config"
)

// A configuration with which the machine never had an address cannot be corrected over the network.
// After reachTime the machine returns to the last one with which it had one. Whether it ever had
// one is kept on STATE (documents.Store.Reached), so that a cable that is pulled later, or a start
// without a network, changes nothing.

const (
	reachTime  = 10 * time.Minute
	reachRetry = time.Minute // after a return that failed
)

// reachInput is what reaching judges by.
type reachInput struct {
	now    time.Time
	config *config.Config // in force, by identity; nil: none
	// it is here to stay: neither it nor the version of the system is on trial
	decided  bool
	had      bool // the machine has had an address with it, in this run or before
	address  bool // it has one now
	comeback bool // there is another one to return to
}

// reaching is since when the machine has had no address with a configuration.
type reaching struct {
	config *config.Config
	since  time.Time
}

// reachAct is what is due.
type reachAct int

const (
	reachRest   reachAct = iota
	reachRecord          // that the machine has had an address with the configuration
	reachReturn          // to the last one with which it had one
)

// step judges an observation. It returns what is due now, and how long nothing is if nothing
// changes (0: for ever). The time begins anew at every start of the machine. It is pure.
//
//	configuration          address   what happens
//	none, or on trial      -         nothing; the time does not run
//	had an address before  -         nothing, whatever becomes of the address
//	never had one          yes       that is recorded
//	never had one          no        nothing for reachTime, then the return, if there is another to return to
func (r reaching) step(in reachInput) (reaching, reachAct, time.Duration) {
	switch {
	case in.config == nil || !in.decided || in.had:
		return reaching{}, reachRest, 0
	case in.address:
		return reaching{}, reachRecord, 0
	case r.config != in.config:
		r = reaching{config: in.config, since: in.now}
	}
	left := reachTime - in.now.Sub(r.since)
	switch {
	case !in.comeback:
		return r, reachRest, 0
	case left > 0:
		return r, reachRest, left
	}
	r.since = in.now.Add(reachRetry - reachTime)
	return r, reachReturn, reachRetry
}

// addressed reports whether the machine can be reached by the network state: it has an address that
// is not the link's own, on a link that is managed, up and connected.
func addressed(s network.State) bool {
	return slices.ContainsFunc(s.Links, func(l network.LinkState) bool {
		return l.Managed && l.Up && l.Carrier && slices.ContainsFunc(l.Addresses, func(a network.AddressState) bool {
			return a.Unfit == "" && a.Prefix.Addr().IsGlobalUnicast()
		})
	})
}

// watchReach follows whether the machine has an address with its configuration.
func (m *machine) watchReach(ctx context.Context) {
	var r reaching
	var act reachAct
	for configs, states := m.config.Watch(), m.networkState.Watch(); ; {
		now, state := configs.Current(), states.Current()
		in := m.reachInput(now, state)
		var rest time.Duration
		r, act, rest = r.step(in)
		switch act {
		case reachRest:
		case reachRecord:
			if err := m.recordReached(now); err != nil {
				m.events.add("config", "failure", err.Error())
				rest = reachRetry
			}
		case reachReturn:
			if err := m.returnToReached(now); err != nil {
				m.say(err.Error())
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

// reachInput looks at what reaching judges by.
func (m *machine) reachInput(now applied, state network.State) reachInput {
	in := reachInput{now: time.Now(), config: now.config}
	why, _ := m.noStorage.Get()
	going, _ := m.upgrade.Get()
	in.decided = now.trial.IsZero() && going.Undecided() == nil && m.medium == "" && why == ""
	if now.config == nil || !in.decided {
		return in
	}
	want, revision := m.networkConfig.Get()
	// Until then the state is that of the configuration before.
	in.address = reflect.DeepEqual(want, networkConfig(now.config)) && state.Revision >= revision && addressed(state)
	var err error
	if _, in.had, err = configs.LastReachable(); err != nil {
		in.had = true // without knowing, nothing is taken back
		return in
	}
	_, err = m.lastReached(now.config)
	in.comeback = err == nil
	return in
}

// lastReached are the documents of the last configuration with which the machine had an address, as
// they would be in force in place of the present one.
func (m *machine) lastReached(present *config.Config) ([]byte, error) {
	text, current, err := configs.LastReachable()
	switch {
	case err != nil:
		return nil, err
	case text == nil || current:
		return nil, fmt.Errorf("configuration: there is no other one with which the machine had an address")
	}
	if text, err = withPresentKeys(text, config.Marshal(present)); err != nil {
		return nil, err
	}
	c, problems := config.Parse("", text)
	if len(problems) > 0 {
		return nil, fmt.Errorf("configuration: the last one with which the machine had an address cannot be read by this version: %w", problems)
	}
	return text, fixed(present, c)
}

// recordReached notes that the machine has had an address with its configuration, if that is still
// the one in force.
func (m *machine) recordReached(a applied) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	if now, _ := m.config.Get(); now.config != a.config || !now.trial.IsZero() {
		return nil
	}
	text, err := configs.Confirmed()
	if err != nil || text == nil { // nil: it is the image's, which every version brings with it
		return err
	}
	return configs.MarkReachable(text)
}

// returnToReached puts the last configuration in force with which the machine had an address, if
// the present one is still the one that never had.
func (m *machine) returnToReached(a applied) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	now, _ := m.config.Get()
	if now.config != a.config || !now.trial.IsZero() {
		return nil
	}
	text, err := m.lastReached(now.config)
	if err == nil {
		err = configs.Put(text)
	}
	if err == nil {
		err = configs.MarkReachable(text) // the keys of Secrets may be others than it had then
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot return to the last one with which the machine had an address: %w", err)
	}
	m.say(fmt.Sprintf("configuration: the machine had no address with this one in %v; the last one with which it had is in force again", reachTime))
	fresh, err := m.reload()
	if err != nil {
		return nil // the topic of the configuration says what is wrong with it
	}
	m.note(fresh.documents, "the machine, which never had an address with the one before")
	if fresh.config != nil && stays(now.config, fresh.config) {
		return m.goDown(powerRequest{to: power.Reboot, why: "to take back the kernel parameters or modules of a configuration with which it had no address"})
	}
	return nil
}
