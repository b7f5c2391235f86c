package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// followSeeds takes a configuration from a medium that is plugged in later, and the disk that it asks for.
func (m *machine) followSeeds(ctx context.Context) {
	for w := m.disks.Watch(); ; {
		if _, _, err := w.Next(ctx); err != nil {
			return
		}
		m.takeSeed(ctx)
		m.installUnattended(ctx)
	}
}

// takeSeed takes the configuration that lies on a labelled medium, if the machine has none. An installed machine keeps it on STATE,
// as if it had been applied, so that the medium can go; one that runs from memory installs itself with it. What is wrong with it is
// on the console and in topic "configuration".
func (m *machine) takeSeed(ctx context.Context) {
	m.applying.Lock()
	defer m.applying.Unlock()
	if now, _ := m.config.Get(); now.config != nil || m.medium == "" && stored() {
		return
	}
	document, err := seed.Find(ctx, m.kernel.LoadModules)
	if err == nil && document != nil {
		err = m.adopt(ctx, *document)
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if now, _ := m.config.Get(); now.config != nil || now.problem == problem {
		return
	}
	// Said before it is set: the console shows what is set by itself, and the reason comes before what follows from it.
	for line := range strings.Lines(problem) {
		m.say("configuration: " + strings.TrimSpace(line))
	}
	m.config.Update(func(a applied) applied { a.problem = problem; return a })
}

// adopt puts a medium's configuration in force, or says why not.
func (m *machine) adopt(ctx context.Context, d seed.Document) error {
	next, problems := config.Parse(d.Name, d.Text)
	if len(problems) > 0 {
		return problems
	}
	own, err := owner()
	if err != nil {
		return err
	}
	if err := keepsOperator(own, next); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := m.able(next); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := m.readable(ctx, next.Cluster); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if m.medium == "" {
		if why, _ := m.noStorage.Get(); why != "" {
			return fmt.Errorf("%s: there is no disk to keep it on: %s", d.Name, why)
		}
		if err := configs.Put(d.Text); err != nil {
			return err
		}
		m.note(d.Text, "medium "+d.Name)
	}
	m.say("configuration: taken from " + d.Name)
	m.config.Set(applied{config: next, applied: time.Now(), source: "medium " + d.Name, documents: d.Text})
	return nil
}

// keepsOperator refuses a configuration that would lock out the operator whom the machine belongs to (the CAs in PEM; empty for
// nobody): a medium is plugged in by whoever stands before the machine.
func keepsOperator(own []byte, next *config.Config) error {
	list := next.Machine.Spec.Trust.OperatorCAs
	if len(list) == 0 || len(own) == 0 {
		return nil
	}
	cas, err := pki.ParseCerts(own)
	if err != nil {
		return fmt.Errorf("operator's CA: %w", err)
	}
	for _, ca := range cas {
		same := func(c config.Certificate) bool { return pki.Fingerprint(c.X509()) == pki.Fingerprint(ca) }
		if !slices.ContainsFunc(list, same) {
			return errors.New("Machine.spec.trust.operatorCAs: the CA of the operator that this machine belongs to, by its image or by pairing, is not in the list; a medium cannot take the machine from its operator")
		}
	}
	return nil
}
