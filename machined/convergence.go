package main

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// settlement is the outcome of the latest attempt to put a configuration in force (follow.go).
type settlement struct {
	config *config.Config // the one that is meant, by identity; nil: none
	done   bool           // false before the first attempt
	// when the first attempt with this configuration ended, or the first one that succeeded
	first    time.Time
	failures []string // what failed, one line each: "host: cannot load kernel modules x: …"
}

// settleTime is how long the answer to a call waits for the operations of the configuration. Longer
// ones go on without it.
const settleTime = time.Minute

// settleAgain is how long a failure may take to go away by itself before it is one.
const settleAgain = 5 * time.Second

// failuresOf are the lines of an error that joins several.
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

// awaitSettled waits until the operations of a configuration were tried, and returns those that
// failed.
func (m *machine) awaitSettled(ctx context.Context, c *config.Config, before network.Config) []string {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	s, err := cell.Wait(ctx, m.settled, func(s settlement) bool { return s.done && s.config == c })
	if err != nil {
		if now, _ := m.config.Get(); now.config != c {
			return []string{"configuration: another one has taken its place meanwhile"}
		}
		return []string{"configuration: its operations are not done after " + settleTime.String() + "; `orlopctl get drift` shows those that are left"}
	}
	// perhaps of something that is there in a moment: only what stays is a failure
	if len(s.failures) > 0 {
		soon, stop := context.WithTimeout(ctx, settleAgain)
		defer stop()
		if later, _ := cell.Wait(soon, m.settled, func(s settlement) bool { return s.config == c && len(s.failures) == 0 }); later.config == c {
			s = later
		}
	}
	failures := slices.Clone(s.failures)
	if !reflect.DeepEqual(before, networkConfig(c)) {
		if err := m.networked(ctx, c); err != nil {
			failures = append(failures, m.networkFailures()...)
		}
	}
	return failures
}

// networkFailures says why the network is not as it is configured.
func (m *machine) networkFailures() (lines []string) {
	state, _ := m.networkState.Get()
	for _, p := range state.Problems {
		lines = append(lines, "network: "+p)
	}
	if lines == nil {
		lines = []string{"network: it is not yet as the configuration says; `orlopctl get network` shows it"}
	}
	return lines
}

// brokenConfiguration says which operations of the configuration in force fail, for the health;
// empty: none. The network does its operations by itself: one that failed is in its state, and a
// link that does not exist is one that cannot be configured.
func brokenConfiguration(now applied, s settlement, state network.State) string {
	if now.config == nil || s.config != now.config {
		return ""
	}
	failures := slices.Clone(s.failures)
	for _, name := range selectors(networkConfig(now.config)) {
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

// after is the settlement when a configuration was tried to be put in force at a time, with these
// failures.
func (s settlement) after(c *config.Config, failures []string, at time.Time) settlement {
	next := settlement{config: c, done: true, first: at, failures: failures}
	if s.done && s.config == c && (len(s.failures) == 0 || len(failures) > 0) {
		next.first = s.first
	}
	return next
}

// newerMargin is how much younger a connection has to be than the rules that it proves: apid and
// machined do not look at the same moment.
const newerMargin = time.Second

// proves reports whether a connection of that age, in milliseconds as apid says it, was opened
// after a configuration was put in force: one that is older goes on although no other can be
// opened. Without an age the call did not come from apid.
func (s settlement) proves(c *config.Config, age string, now time.Time) bool {
	if s.config != c || !s.done {
		return false
	}
	ms, err := strconv.ParseInt(age, 10, 64)
	return age == "" || err == nil && now.Add(-time.Duration(ms)*time.Millisecond).After(s.first.Add(newerMargin))
}
