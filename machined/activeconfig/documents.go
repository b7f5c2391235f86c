package activeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
)

// The origins of the documents of a configuration: a request, a patch, the history, STATE, the
// image.

// Parse returns the configuration that a request contains or names, with its documents. It checks
// the documents by themselves, not against this machine. It checks the expiry of certificates only
// if the clock is synchronized (synced).
func (m *Manager) Parse(now Active, filename string, r *api.ApplyRequest, synced bool) (*config.Config, []byte, error) {
	filename, text, err := m.requested(now, filename, r)
	if err != nil {
		return nil, nil, transition.Refuse(err)
	}
	next, problems := config.Parse(filename, text)
	if len(problems) == 0 && synced {
		problems = next.CheckTime(time.Now())
	}
	return next, text, problems.Err()
}

// requested returns the documents of a request, and their name in messages.
func (m *Manager) requested(now Active, filename string, r *api.ApplyRequest) (name string, text []byte, err error) {
	switch {
	case r.Number != 0 && (r.Patch || len(r.Documents) > 0):
		return "", nil, errors.New("cannot apply documents or a patch together with the number of an earlier configuration")
	case r.Number != 0:
		e, err := m.deps.Store.Entry(r.Number)
		return fmt.Sprintf("configuration %d", r.Number), []byte(e.Documents), err
	case r.Patch:
		text, err := patched(m.deps.Store, now, r.Documents)
		return "patched", text, err // line numbers refer to the result
	}
	return filename, r.Documents, nil
}

// patched returns the present documents in a store with a patch applied.
func patched(store configstore.Store, now Active, patch []byte) ([]byte, error) {
	if now.Config == nil {
		return nil, errors.New("patch: no configuration to change; apply one")
	}
	present, err := os.ReadFile(store.Current())
	if errors.Is(err, fs.ErrNotExist) { // the active configuration is part of the image
		present, err = config.Marshal(now.Config), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the present configuration: %w", err)
	}
	return config.Merge(present, patch)
}

// Load reads the configuration on STATE, else the configuration in the image, else none, and
// returns the file that it read. For an unreadable configuration, Load returns an error and sets
// a.Problem. The machine must not treat it as no configuration: a machine without a configuration
// can be unclaimed, and would accept a pairing with any operator CA.
func (m *Manager) Load() (a Active, from string, err error) {
	if a, from, err = m.read(); err != nil {
		a = Active{Problem: fmt.Sprintf("%s cannot be used: %v", from, err)}
	}
	return a, from, err
}

// read reads the configuration on STATE, else the configuration in the image, else none.
func (m *Manager) read() (Active, string, error) {
	for _, place := range []struct{ file, source string }{{m.deps.Store.Current(), "STATE"}, {m.deps.Embedded, "image"}} {
		from := place.file
		text, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Active{}, from, fmt.Errorf("configuration: cannot read: %w", err)
		}
		c, problems := config.Parse(from, text)
		if len(problems) > 0 {
			return Active{}, from, problems
		}
		info, err := os.Stat(from)
		if err != nil {
			return Active{}, from, fmt.Errorf("configuration: %w", err)
		}
		return Active{Config: c, At: info.ModTime(), Source: place.source, Documents: text}, from, nil
	}
	return Active{}, "", nil
}

// Fallback returns the configuration to which a trial would revert: the active configuration or,
// during a trial, the previous configuration; nil if there is none.
func (m *Manager) Fallback(now Active) *config.Config {
	if why := m.deps.StorageProblem(); why != "" || m.deps.InMemory {
		return nil // without storage there is no trial
	}
	if !now.OnTrial() {
		return now.Config
	}
	text, err := m.deps.Store.Confirmed()
	if err != nil {
		return now.Config
	}
	c, problems := config.Parse("", text)
	if len(problems) > 0 {
		return now.Config
	}
	return c
}

// Restore replaces the stored documents by the documents of another version, but retains the
// present keys.
func (m *Manager) Restore(saved []byte) error {
	// Without a present configuration there are no keys to retain.
	if current, err := os.ReadFile(m.deps.Store.Current()); err == nil {
		if saved, err = transition.WithPresentKeys(saved, current); err != nil {
			return err
		}
	}
	return m.deps.Store.Put(saved)
}

// Staged returns the time of the staged configuration; zero if there is none. The error is
// limits.ErrUnknown if STATE does not answer.
func (m *Manager) Staged(ctx context.Context) (time.Time, error) {
	return limits.Read(ctx, &m.stagedReads, "staged configuration", limits.StateTimeout, func(context.Context) (time.Time, error) { return m.deps.Store.Staged(), nil })
}

// CheckSettled returns an error if another configuration may become active: the active one is on
// trial, or another is staged.
func (m *Manager) CheckSettled() error {
	if m.Current().OnTrial() || !m.deps.Store.Staged().IsZero() {
		return errors.New("another configuration may become active")
	}
	return nil
}

// HasStored reports whether STATE has a configuration.
func (m *Manager) HasStored() bool {
	_, err := os.Stat(m.deps.Store.Current())
	return !errors.Is(err, fs.ErrNotExist)
}
