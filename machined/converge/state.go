package converge

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
)

// State is the result of the latest reconciliation of a configuration.
type State struct {
	Config *config.Config // its configuration, compared by identity; nil: none
	Done   bool           // false before the first reconciliation
	// First is the end of the first reconciliation of this configuration; after failures, the end
	// of the first reconciliation without failures.
	First time.Time
	// Failures, one per line: "host: cannot load kernel modules x: …"
	Failures []string
}

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

// Problem returns the failed operations of the active configuration, for the health; empty if none.
// The network controller performs its operations by itself, so the network state contains the
// failed operations; a missing link is a failure, too.
func (s State) Problem(active *config.Config, state network.State) string {
	if active == nil || s.Config != active {
		return ""
	}
	failures := slices.Clone(s.Failures)
	for _, name := range transition.LinkSelectors(active) {
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

// next returns the state after a reconciliation of a configuration with these failures.
func (s State) next(c *config.Config, failures []string, at time.Time) State {
	next := State{Config: c, Done: true, First: at, Failures: failures}
	if s.Done && s.Config == c && (len(s.Failures) == 0 || len(failures) > 0) {
		next.First = s.First
	}
	return next
}

// newerMargin is the minimum time between the activation of a configuration and the opening of a
// connection that proves it, because apid and machined read the clock at different times.
const newerMargin = time.Second

// Proves reports whether a connection was opened after the activation of the configuration c. age
// is the age of the connection in milliseconds, as apid sends it. An older connection proves
// nothing, because it can continue even if no new connection can be opened. An empty age means that
// the call did not come from apid; the result is then true.
func (s State) Proves(c *config.Config, age string, now time.Time) bool {
	if s.Config != c || !s.Done {
		return false
	}
	ms, err := strconv.ParseInt(age, 10, 64)
	return age == "" || err == nil && now.Add(-time.Duration(ms)*time.Millisecond).After(s.First.Add(newerMargin))
}
