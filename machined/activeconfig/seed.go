package activeconfig

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
)

// SeedDeps are the dependencies for the configuration on a medium.
type SeedDeps struct {
	// Find reads the configuration of a labelled medium; nil without a medium.
	Find func(context.Context) (*seed.Document, error)
	// Owner returns the CAs in PEM of the operator that claimed the machine; empty if the machine
	// is unclaimed (ownership.Owner).
	Owner func() ([]byte, error)
	// Check rejects a configuration that this machine cannot run at present.
	Check func(context.Context, *config.Config) error
	// MissingLinks returns the links of a configuration that the machine does not have, and the
	// links that the machine has.
	MissingLinks func(network.Config) (missing, present []string, err error)
}

// AdoptSeed adopts the configuration on a labeled medium if the machine has no configuration. An
// installed machine stores the documents on STATE, as after an apply, so the medium can be removed.
// A machine that runs from memory installs itself with the documents. A problem is reported on the
// console and in topic "configuration".
//
// The search for a medium holds no lock: otherwise a medium that does not answer would block
// pairing and the apply of a configuration. The result of the search is used only if the machine
// still has no configuration.
func (m *Manager) AdoptSeed(ctx context.Context) {
	if !m.needsSeed() {
		return
	}
	document, err := m.deps.Seed.Find(ctx)
	m.Lock()
	defer m.Unlock()
	if !m.needsSeed() {
		return
	}
	if err == nil && document != nil {
		err = m.adopt(ctx, *document)
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if now := m.Current(); now.Config != nil || now.Problem == problem {
		return
	}
	// The problem is written to the console first, and to the cell second. A change of the cell
	// updates the status on the console, and the reason should precede its consequences.
	for line := range strings.Lines(problem) {
		m.deps.Console("configuration: " + strings.TrimSpace(line))
	}
	m.cell.Update(func(a Active) Active { a.Problem = problem; return a })
}

// needsSeed reports whether the machine has no configuration, and STATE has no unreadable file.
func (m *Manager) needsSeed() bool {
	now := m.Current()
	return now.Config == nil && (m.deps.InMemory || !m.HasStored())
}

// adopt activates the configuration of a medium, or returns an error.
func (m *Manager) adopt(ctx context.Context, d seed.Document) error {
	next, problems := config.Parse(d.Name, d.Text)
	if len(problems) > 0 {
		return problems
	}
	owner, err := m.deps.Seed.Owner()
	if err != nil {
		return err
	}
	if err := ownership.CheckMedium(owner, next); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := m.deps.Seed.Check(ctx, next); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := awaitLinks(ctx, next, m.deps.Seed.MissingLinks, linkTimeout); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if !m.deps.InMemory {
		if why := m.deps.StorageProblem(); why != "" {
			return fmt.Errorf("%s: no disk to store it on: %s", d.Name, why)
		}
		if err := m.deps.Store.Put(d.Text); err != nil {
			return err
		}
		m.AddToHistory(d.Text, "medium "+d.Name)
	}
	m.deps.Console("configuration: taken from " + d.Name)
	m.cell.Set(Active{Config: next, At: time.Now(), Source: "medium " + d.Name, Documents: d.Text})
	return nil
}

// linkTimeout bounds the wait for the links of a configuration on a medium: machined reads the
// medium while drivers still initialize network interfaces.
const linkTimeout = 15 * time.Second

// awaitLinks waits until the machine has the links of a configuration on a medium, or rejects the
// configuration: without an address, the configuration cannot be corrected over the network, and a
// configured machine does not read media. awaitLinks does not wait if the configuration names
// modules, which may create links.
func awaitLinks(ctx context.Context, next *config.Config, missingLinks func(network.Config) (missing, present []string, err error), timeout time.Duration) error {
	if len(next.Machine.Spec.KernelModules) > 0 {
		return nil
	}
	deadline := time.After(timeout)
	for {
		missing, present, err := missingLinks(nodeplan.Network(next))
		if err != nil {
			return err
		}
		lines := transition.Hardware{MissingLinks: missing, PresentLinks: present}.Missing(next)
		if len(lines) == 0 {
			return nil
		}
		select {
		case <-time.After(linkPollInterval):
		case <-deadline:
			return fmt.Errorf("configuration refused: %s", strings.Join(lines, "; "))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// linkPollInterval is the poll interval of awaitLinks.
const linkPollInterval = 200 * time.Millisecond
