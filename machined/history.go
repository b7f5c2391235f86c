package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
)

// A configuration on trial, and the earlier configurations.
//
// During a trial the previous configuration is stored beside the new configuration on STATE
// (package configstore). It becomes active again when the time is up (watchTrial), and at the next
// boot, for any reason. (Kernel parameters and modules revert at boot only, so the machine reboots
// if the trial changed them.) Only Confirm ends the trial, and it requires a call over the API: a
// configuration that locks out its operator is never confirmed.

// trialRetry is the delay after a failed revert. After trialRetries failures the machine reboots:
// the boot reverts the trial, and checks a disk that rejects writes.
const (
	trialRetry   = 10 * time.Second
	trialRetries = 6
)

// beginConfiguration handles staged documents and trials at boot, and returns the origin of the
// configuration for the history. adopt reports that staged documents are for this boot.
func (m *machine) beginConfiguration(adopt bool) string {
	returned, staged, err := configs.Boot(adopt)
	if err != nil {
		m.logConsole(err.Error())
	}
	by := "the start"
	if returned {
		by = "the boot, after an unconfirmed trial"
		m.logConsole("configuration: the one before the trial is active again: the new one was not confirmed before the reboot")
	}
	if staged {
		by = "the boot, from the staged configuration"
		m.events.add("config", "config", "the staged configuration is active")
	}
	return by
}

// addToHistory adds the active configuration to the history. An error of the history does not stop
// the activation.
func (m *machine) addToHistory(text []byte, by string) {
	if why, _ := m.disks.Problem().Get(); why != "" {
		return
	}
	err := configs.Add(text, by, time.Now(), func(before string) []string { return compared([]byte(before), text) })
	if err != nil {
		m.events.add("config", "failure", err.Error())
	}
}

// compared returns the differences between documents. Unreadable documents count as none.
func compared(before, after []byte) []string {
	read := func(text []byte) *config.Config {
		c, problems := config.Parse("", text)
		if len(problems) > 0 {
			return nil
		}
		return c
	}
	return config.Changes(read(before), read(after))
}

// watchTrial reverts a trial when its time is up.
func (m *machine) watchTrial(ctx context.Context) {
	failed := 0
	for w := m.config.Watch(); ; {
		now, late := w.Current(), (<-chan time.Time)(nil)
		if !now.trial.IsZero() {
			late = time.After(time.Until(now.trial))
		}
		select {
		case <-late:
			err := m.revertTrial(now.trial)
			if err == nil {
				failed = 0
				continue
			}
			m.logConsole(err.Error())
			if failed++; failed == trialRetries {
				_ = m.power.Shutdown(power.Request{To: power.Reboot, Why: "to revert an unconfirmed configuration: " + err.Error()})
			}
			m.config.Update(func(a applied) applied { a.trial = time.Now().Add(trialRetry); return a })
		case <-w.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// reload activates the stored configuration. An unreadable configuration is handled as at boot. The
// caller holds m.applyMu.
func (m *machine) reload() (applied, error) {
	a, from, err := load()
	if err != nil {
		a = applied{problem: fmt.Sprintf("%s cannot be used: %v", from, err)}
	}
	m.config.Set(a)
	return a, err
}

// revertTrial reverts the trial with this end, unless a client has ended it.
func (m *machine) revertTrial(until time.Time) error {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	tried, _ := m.config.Get()
	if !tried.trial.Equal(until) {
		return nil
	}
	if _, err := configs.RevertTrial(); err != nil {
		return err
	}
	m.logConsole("configuration: the one on trial was not confirmed; the previous one is active again")
	a, err := m.reload()
	if err != nil {
		return nil
	}
	m.addToHistory(a.documents, "the end of an unconfirmed trial")
	if a.config != nil && slices.ContainsFunc(append(tried.tried, tried.config), func(c *config.Config) bool { return transition.NeedsReboot(c, a.config) }) {
		return m.power.Shutdown(power.Request{To: power.Reboot, Why: "to revert the kernel parameters or modules of a configuration on trial"})
	}
	return nil
}

var errOldConnection = status.Error(codes.Unavailable, "configuration: not confirmed: the connection is older than the configuration on trial, so it does not prove that a new connection is possible; call again over a new one")

// confirmTrial ends the trial, and returns the operations of the configuration that failed.
func (m *machine) confirmTrial(ctx context.Context, by callerid.Caller, name string) (failures []string, err error) {
	now, err := m.confirm(ctx, by, name)
	if err != nil {
		return nil, err
	}
	return m.reconciler.AwaitConverged(ctx, now.config, nodeplan.Network(now.config)), nil
}

// confirm ends the trial and returns the configuration that stays.
func (m *machine) confirm(ctx context.Context, by callerid.Caller, name string) (applied, error) {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	now, _ := m.config.Get()
	if now.trial.IsZero() {
		return applied{}, status.Error(codes.FailedPrecondition, "configuration: none is on trial; `orlopctl config-history` shows whether the previous one is active again")
	}
	if name != "" && name != now.trialName {
		return applied{}, status.Error(codes.FailedPrecondition, "configuration: not confirmed: another configuration than yours is on trial; `orlopctl config-history` shows it")
	}
	if s, _ := m.reconciler.State().Get(); !s.Proves(now.config, by.Age, time.Now()) {
		return applied{}, errOldConnection
	}
	// The network must have converged: until then the caller uses the old network.
	if !now.sameNetwork {
		if err := m.reconciler.AwaitNetwork(ctx, now.config); err != nil {
			return applied{}, err
		}
	}
	// Documents that were staged before the trial would replace the confirmed documents at the next
	// boot. They are dropped first: after a power cut between the two steps, the trial is not
	// confirmed.
	var err error
	if configs.Staged().Before(now.applied) {
		err = configs.DropStaged()
	}
	if err == nil {
		err = configs.ConfirmTrial()
	}
	if err != nil {
		return applied{}, status.Error(codes.Internal, err.Error())
	}
	m.events.add("config", "config", "confirmed by "+by.String())
	now.trial, now.tried = time.Time{}, nil
	m.config.Set(now)
	return now, nil
}

// configHistory returns the entries of the history.
func configHistory() ([]*api.ConfigEntry, error) {
	numbers, err := configs.Revisions()
	if err != nil {
		return nil, err
	}
	var out []*api.ConfigEntry
	for _, n := range numbers {
		e, err := configs.Entry(n)
		if err != nil {
			e = configstore.Entry{Number: n, By: "unknown", Changes: []string{err.Error()}}
		}
		out = append(out, &api.ConfigEntry{Number: e.Number, At: timestamppb.New(e.At), By: e.By, Changes: e.Changes})
	}
	return out, nil
}

// revision returns a configuration of the history, or for 0 the active configuration, with the time
// and the author of its activation.
func (m *machine) revision(number uint64) (c *config.Config, at time.Time, by string, err error) {
	if number == 0 {
		now, _ := m.config.Get()
		if now.config == nil {
			return nil, time.Time{}, "", status.Error(codes.NotFound, "configuration: there is none yet; apply one")
		}
		return now.config, now.applied, now.source, nil
	}
	e, err := configs.Entry(number)
	if err != nil {
		return nil, time.Time{}, "", status.Error(codes.NotFound, err.Error())
	}
	c, problems := config.Parse(fmt.Sprintf("configuration %d", number), []byte(e.Documents))
	if len(problems) > 0 { // written by another version of the system
		return nil, time.Time{}, "", status.Errorf(codes.FailedPrecondition, "configuration %d: this version cannot read it: %v", number, problems)
	}
	return c, e.At, e.By, nil
}
