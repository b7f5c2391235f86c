package activeconfig

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
)

// A configuration on trial, and the earlier configurations.
//
// During a trial the previous configuration is stored beside the new configuration on STATE
// (package configstore). It becomes active again when the time is up (WatchTrial), and at the next
// boot, for any reason. (Kernel parameters and modules revert at boot only, so the machine reboots
// if the trial changed them.) Only Confirm ends the trial, and it requires a call over the API: a
// configuration that locks out its operator is never confirmed.

// trialRetry is the delay after a failed revert. After trialRetries failures the machine reboots:
// the boot reverts the trial, and checks a disk that rejects writes.
const (
	trialRetry   = 10 * time.Second
	trialRetries = 6
)

// Boot handles staged documents and trials at boot, and returns the origin of the
// configuration for the history. adopt reports that staged documents are for this boot.
func (m *Manager) Boot(adopt bool) string {
	returned, staged, err := m.deps.Store.Boot(adopt)
	if err != nil {
		m.deps.Console(err.Error())
	}
	by := "the start"
	if returned {
		by = "the boot, after an unconfirmed trial"
		m.deps.Console("configuration: the one before the trial is active again: the new one was not confirmed before the reboot")
	}
	if staged {
		by = "the boot, from the staged configuration"
		m.deps.Event("config", "the staged configuration is active")
	}
	return by
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
			err := m.revertTrial(now.TrialEnd)
			if err == nil {
				failed = 0
				continue
			}
			m.deps.Console(err.Error())
			if failed++; failed == trialRetries {
				_ = m.deps.Reboot("to revert an unconfirmed configuration: " + err.Error())
			}
			m.cell.Update(func(a Active) Active { a.TrialEnd = time.Now().Add(trialRetry); return a })
		case <-w.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// Reload activates the stored configuration. An unreadable configuration is handled as at boot. The
// caller holds the lock (Lock).
func (m *Manager) Reload() (Active, error) {
	a, _, err := m.Load()
	m.cell.Set(a)
	return a, err
}

// revertTrial reverts the trial with this end, unless a client has ended it.
func (m *Manager) revertTrial(until time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	tried := m.Current()
	if !tried.TrialEnd.Equal(until) {
		return nil
	}
	if _, err := m.deps.Store.RevertTrial(); err != nil {
		return err
	}
	m.deps.Console("configuration: the one on trial was not confirmed; the previous one is active again")
	a, err := m.Reload()
	if err != nil {
		return nil
	}
	m.AddToHistory(a.Documents, "the end of an unconfirmed trial")
	if a.Config != nil && slices.ContainsFunc(append(tried.Tried, tried.Config), func(c *config.Config) bool { return transition.NeedsReboot(c, a.Config) }) {
		return m.deps.Reboot("to revert the kernel parameters or modules of a configuration on trial")
	}
	return nil
}

var errOldConnection = status.Error(codes.Unavailable, "configuration: not confirmed: the connection is older than the configuration on trial, so it does not prove that a new connection is possible; call again over a new one")

// Confirm ends the trial and returns the configuration that stays.
func (m *Manager) Confirm(ctx context.Context, by callerid.Caller, name string) (*config.Config, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Current()
	if !now.OnTrial() {
		return nil, status.Error(codes.FailedPrecondition, "configuration: none is on trial; `orlopctl config-history` shows whether the previous one is active again")
	}
	if name != "" && name != now.TrialName {
		return nil, status.Error(codes.FailedPrecondition, "configuration: not confirmed: another configuration than yours is on trial; `orlopctl config-history` shows it")
	}
	if !m.deps.Proves(now.Config, by.Age) {
		return nil, errOldConnection
	}
	// The network must have converged: until then the caller uses the old network.
	if !now.SameNetwork {
		if err := m.deps.AwaitNetwork(ctx, now.Config); err != nil {
			return nil, err
		}
	}
	// Documents that were staged before the trial would replace the confirmed documents at the next
	// boot. They are dropped first: after a power cut between the two steps, the trial is not
	// confirmed.
	var err error
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
