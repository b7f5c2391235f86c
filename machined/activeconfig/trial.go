package activeconfig

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
)

// A configuration on trial, and the earlier configurations.
//
// During a trial the previous configuration is stored beside the new configuration on STATE
// (package configstore). The previous configuration becomes active again when the time is up
// (WatchTrial), and at the next boot, whatever caused the boot. The new configuration stays only
// after Confirm, which requires a call over the API: a configuration that locks out its operator is
// never confirmed.
//
// Kernel modules, a replaced pod network and the kernel parameters net.* revert at boot only. If
// the trial changed them, the machine reboots at the end of the trial. It also reboots if another
// kernel parameter does not return to its former value.

// trialRetry is the delay after a failed revert. After trialRetries failures the machine reboots,
// because the disk may reject writes: the boot checks the file systems and reverts the trial.
const (
	trialRetry   = 10 * time.Second
	trialRetries = 6
)

// restoreTimeout bounds the wait until the kernel parameters of a reverted trial have their former
// values; restoreInterval is the interval of the checks.
const (
	restoreTimeout  = time.Minute
	restoreInterval = 5 * time.Second
)

// LoadAtBoot performs the pending changes of a boot (configstore.Store.Boot) and reads the
// configuration. from is its file, and by is its origin for the history. If adopt is true, a staged
// configuration becomes active. A staged configuration with a trial is active until the end of the
// trial, which begins here. The record of this trial is on STATE before the configuration is read,
// so a machine that crashes with the configuration boots with the previous configuration. If this
// version cannot read the configuration on trial, LoadAtBoot reverts the trial at once.
func (m *Manager) LoadAtBoot(adopt bool) (a Active, from, by string, err error) {
	changed, err := m.deps.Store.Boot(adopt)
	if err != nil {
		m.deps.Console(err.Error())
	}
	by = "the start"
	if changed.Returned {
		by = "the boot, after an unconfirmed trial"
		m.deps.Console("configuration: the one before the trial is active again: the new one was not confirmed before the reboot")
	}
	if changed.Staged {
		by = "the boot, from the staged configuration"
		m.deps.Event("config", "the staged configuration is active")
	}
	a, from, err = m.Load()
	switch {
	case changed.Overdue:
		m.deps.Console("configuration: the one on trial was not confirmed before the reboot, but it is still active: the revert is tried again")
		a.TrialEnd, a.Overdue = time.Now().Add(trialRetry), true
	case changed.Trial == nil:
	case err != nil:
		return m.leaveUnusable(a)
	default:
		a.TrialEnd, a.TrialName = time.Now().Add(changed.Trial.Duration), changed.Trial.Name
		m.deps.Console(fmt.Sprintf("configuration: on trial for %v: then the previous one becomes active again, unless a client confirms this one", changed.Trial.Duration))
	}
	return a, from, by, err
}

// Start makes the configuration of the boot active (LoadAtBoot). It reports whether the machine has
// no configuration, not even an unreadable file; then AdoptSeed can adopt a configuration from a
// medium.
func (m *Manager) Start(adopt bool) (none bool) {
	a, from, by, err := m.LoadAtBoot(adopt)
	switch {
	case err != nil:
		m.deps.Console("configuration: " + a.Problem + "; apply a new one")
		m.cell.Set(a)
	case a.Config == nil:
		return true
	default:
		m.deps.Event("config", "loaded from "+from)
		m.cell.Set(a)
		m.AddToHistory(a.Documents, by)
	}
	return false
}

// leaveUnusable reverts the trial of an unreadable configuration; it has the results of LoadAtBoot.
// It adds the tried documents to the history before the previous documents, because the history
// gets no entry with the documents of its last entry. Both entries have a remark instead of
// differences.
func (m *Manager) leaveUnusable(tried Active) (a Active, from, by string, err error) {
	by = "the boot, after an unusable trial"
	text, unread := os.ReadFile(m.deps.Store.Current())
	_, failed := m.deps.Store.RevertTrial()
	if failed != nil {
		m.deps.Console(failed.Error())
	}
	a, from, err = m.Load()
	if failed != nil && m.deps.Store.MaybeOnTrial() {
		m.deps.Console("configuration: the one on trial cannot be used, but it is still active: the revert is tried again: " + tried.Problem)
		a.TrialEnd, a.Overdue = time.Now().Add(trialRetry), true
		return a, from, by, err
	}
	m.deps.Console("configuration: the one on trial cannot be used, and the previous one is active again: " + tried.Problem)
	if unread == nil {
		m.addToHistory(text, "the boot, from the staged configuration", "on trial; it cannot be used: "+tried.Problem)
	}
	m.addToHistory(a.Documents, by, "the trial has ended; the previous configuration is active again")
	return a, from, by, err
}

// WatchTrial reverts a trial when its time is up.
func (m *Manager) WatchTrial(ctx context.Context) {
	failed := 0
	for w := m.cell.Watch(); ; {
		now, late := w.Current(), (<-chan time.Time)(nil)
		if now.OnTrial() {
			late = time.After(time.Until(now.TrialEnd))
		}
		select {
		case <-late:
			left, err := m.revertTrial(now.TrialEnd)
			if err == nil {
				failed = 0
				if len(left.names) > 0 {
					panics.Go("restored kernel parameters", func() { m.awaitRestored(ctx, left, restoreTimeout, restoreInterval) })
				}
				continue
			}
			m.deps.Console(err.Error())
			// The revert of an overdue trial has already failed at a boot, so another boot would
			// not help.
			if failed++; failed == trialRetries && !now.Overdue {
				_ = m.deps.Reboot("to revert an unconfirmed configuration: " + err.Error())
			}
			m.cell.Update(func(a Active) Active { return deferred(a, now.TrialEnd) })
		case <-w.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// deferred postpones the end of the trial that ends at this time, for the next attempt to revert.
// It changes nothing if a client has ended or replaced that trial.
func deferred(a Active, end time.Time) Active {
	if a.TrialEnd.Equal(end) {
		a.TrialEnd = time.Now().Add(trialRetry)
	}
	return a
}

// Reload activates the stored configuration. An unreadable configuration is handled as at boot. The
// caller holds the lock (Lock).
func (m *Manager) Reload() (Active, error) {
	a, _, err := m.Load()
	m.cell.Set(a)
	return a, err
}

// restoration is the return of kernel parameters to the values that a configuration gives them.
type restoration struct {
	config *config.Config
	names  []string
}

// revertTrial reverts the trial that ends at this time, unless a client has ended it. It returns
// the kernel parameters that now return to their former values; none if the machine reboots for the
// revert.
func (m *Manager) revertTrial(until time.Time) (left restoration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tried := m.Current()
	if !tried.TrialEnd.Equal(until) {
		return left, nil
	}
	if _, err := m.deps.Store.RevertTrial(); err != nil {
		return left, err
	}
	m.deps.Console("configuration: the one on trial was not confirmed; the previous one is active again")
	a, err := m.Reload()
	if err != nil {
		return left, nil
	}
	m.AddToHistory(a.Documents, "the end of an unconfirmed trial")
	if a.Config == nil {
		return left, nil
	}
	// A nil entry is a tried configuration that this version cannot read; none of its fields took
	// effect.
	all := slices.DeleteFunc(append(slices.Clone(tried.Tried), tried.Config), func(c *config.Config) bool { return c == nil })
	if slices.ContainsFunc(all, func(c *config.Config) bool { return transition.NeedsReboot(c, a.Config) }) {
		return left, m.deps.Reboot("to revert the kernel parameters or modules of a configuration on trial")
	}
	return restoration{a.Config, transition.RestoredSysctls(all, a.Config)}, nil
}

// awaitRestored waits until kernel parameters have their values of the active configuration. If
// some still differ after the timeout, it reboots the machine: the kernel rejects the former
// values, or an operation of the tried configuration does not end. A later configuration ends the
// wait.
func (m *Manager) awaitRestored(ctx context.Context, r restoration, timeout, interval time.Duration) {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		left, err := m.deps.UnrestoredSysctls(r.config, r.names)
		if err != nil {
			left = []string{err.Error()}
		}
		if len(left) == 0 || m.Current().Config != r.config {
			return
		}
		if backoff.Sleep(waiting, interval) == nil {
			continue
		}
		if ctx.Err() == nil {
			if err := m.deps.Reboot("to revert kernel parameters of a configuration on trial: " + strings.Join(left, ", ")); err != nil {
				m.deps.Console(err.Error())
			}
		}
		return
	}
}

var errOldConnection = status.Error(codes.Unavailable, "configuration: not confirmed: the connection is older than the configuration on trial, so it does not prove that a new connection is possible; call again over a new one")

// Confirm ends the trial and returns the configuration that stays.
func (m *Manager) Confirm(ctx context.Context, by api.Caller, name string) (*config.Config, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Current()
	t, trying, err := m.deps.Store.StagedTrial()
	switch {
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	case trying && (name == "" && !now.OnTrial() || name != "" && name == t.Name):
		return nil, status.Error(codes.Unavailable, "configuration: not confirmed: it is staged, and its trial begins with the next boot; confirm it then")
	case now.Overdue:
		return nil, status.Error(codes.FailedPrecondition, "configuration: not confirmed: its trial ended with a reboot, and the revert to the previous one has failed; `orlopctl events` shows the reason; apply a configuration to replace it")
	case !now.OnTrial():
		return nil, status.Error(codes.FailedPrecondition, "configuration: none is on trial; `orlopctl config-history` shows whether the previous one is active again")
	case name != "" && name != now.TrialName:
		return nil, status.Error(codes.FailedPrecondition, "configuration: not confirmed: another configuration than yours is on trial; `orlopctl config-history` shows it")
	}
	if !m.deps.Proves(now.Config, by.Age) {
		return nil, errOldConnection
	}
	// The network must have converged: until then, the caller's connection uses the old network.
	if !now.SameNetwork {
		if err := m.deps.AwaitNetwork(ctx, now.Config); err != nil {
			return nil, err
		}
	}
	// Documents that were staged before the trial would replace the confirmed documents at the next
	// boot, so they are dropped. The confirmation is the second step: a power cut between the two
	// steps leaves the trial unconfirmed.
	if m.deps.Store.Staged().Before(now.At) {
		err = m.deps.Store.DropStaged()
	}
	if err == nil {
		err = m.deps.Store.ConfirmTrial()
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	m.deps.Event("config", "confirmed by "+by.String())
	now.TrialEnd, now.Tried = time.Time{}, nil
	m.cell.Set(now)
	return now.Config, nil
}
