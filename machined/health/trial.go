package health

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Trial is the state of a machine with a version on trial.
type Trial struct {
	Machine Machine
	// StorageProblem is the reason for which STATE is not mounted; empty if it is mounted. If it is
	// not mounted, the version is at fault: the former version must have mounted STATE, because an
	// upgrade is impossible without it.
	StorageProblem string
	Stored         bool // STATE has a configuration
	// Firewall is the reason for which the nftables rules are not active. Extensions is the reason
	// for which an extension of the version is not usable. Both are empty without a problem.
	Firewall, Extensions string
}

// FailedCheck returns the first failed check of a version on trial; "" if all passed. The nftables
// rules and the extensions are always checked. With a Cluster document, all checks of `orlopctl
// health` must pass, too. Without a Cluster document, only the management API must run, because a
// client can use it to apply a configuration.
func FailedCheck(t Trial) string { return cmp.Or(failedCheck(t), t.Firewall, t.Extensions) }

// failedCheck is FailedCheck without the nftables rules and the extensions.
func failedCheck(t Trial) string {
	c := t.Machine.Config
	switch {
	case t.StorageProblem != "":
		return "storage: " + t.StorageProblem
	case t.Stored && c == nil:
		return "configuration: the stored one is unusable"
	case c == nil || c.Cluster == nil:
		if supervise.Find(t.Machine.Services, nodespec.ServiceApid).State != supervise.Running {
			return "management API: not answering yet"
		}
		return ""
	}
	for _, c := range Of(t.Machine).Checks {
		if !c.Ok && !isUserProblem(c) {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// isUserProblem reports whether objects of users cause a failed check. Such a check does not fail a
// trial: the version is not at fault, and a rollback would prevent an upgrade that fixes the
// problem.
func isUserProblem(c *api.HealthCheck) bool {
	return strings.HasPrefix(c.Detail, nodespec.ProblemPrefix) && slices.Contains([]string{"bootstrap", "metrics", nodespec.Extensions}, c.Name)
}

// TrialDeps is the environment of a TrialWatcher.
type TrialDeps struct {
	// Read returns the present state, without Stored. Changes notify the TrialWatcher of each
	// change after which Read or Panic can return another result.
	Read    func() Trial
	Changes []cell.View[struct{}]
	// HasStored reports whether STATE has a configuration. It may hang.
	HasStored func() bool
	// Panic returns the reason for which a version that panicked fails; empty if it has not
	// panicked.
	Panic func() string
}

// TrialWatcher watches the checks of a version on trial (upgrade.HealthWatcher). A single goroutine
// uses it.
type TrialWatcher struct {
	deps    TrialDeps
	changes *cell.Group
	reads   limits.Bounded // reads of STATE
}

// NewTrialWatcher returns a watcher. It reads nothing.
func NewTrialWatcher(d TrialDeps) *TrialWatcher {
	return &TrialWatcher{deps: d, changes: cell.NewGroup(d.Changes...)}
}

// Failed returns the active configuration (nil for none) and the first failed check; "" if all
// passed.
func (w *TrialWatcher) Failed() (c *config.Config, failed string) {
	w.changes.Mark()
	now := w.deps.Read()
	if now.Machine.Config == nil && now.StorageProblem == "" {
		stored, err := limits.Read(context.Background(), &w.reads, "stored configuration", limits.StateTimeout, func(context.Context) (bool, error) { return w.deps.HasStored(), nil })
		if now.Stored = stored; err != nil {
			now.StorageProblem = "STATE does not answer, so it is unknown whether it has a configuration: " + err.Error()
		}
	}
	return now.Machine.Config, FailedCheck(now)
}

// Panic returns the reason for which a version that panicked fails; empty if it has not panicked.
func (w *TrialWatcher) Panic() string { return w.deps.Panic() }

// Wait waits for a change since Failed, or until ctx ends, with its error.
func (w *TrialWatcher) Wait(ctx context.Context) error { return w.changes.Wait(ctx, nil) }
