package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// watchSeeds adopts a configuration from a medium that is plugged in later, and installs to the
// disk that it selects.
func (m *machine) watchSeeds(ctx context.Context) {
	for w := m.disks.Watch(); ; {
		if _, _, err := w.Next(ctx); err != nil {
			return
		}
		m.adoptSeed(ctx)
		m.installUnattended(ctx)
	}
}

// adoptSeed adopts the configuration on a labeled medium if the machine has none. An installed
// machine stores it on STATE as if it were applied, so that the medium can be removed; a machine
// that runs from memory installs itself with it. A problem is reported on the console and in topic
// "configuration".
//
// The search holds no lock: a medium that does not answer would block pairing and the apply of a
// configuration. Its result is used only if the machine still has no configuration.
func (m *machine) adoptSeed(ctx context.Context) {
	if !m.needsSeed() {
		return
	}
	document, err := seed.Find(ctx, m.prober)
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
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
	if now, _ := m.config.Get(); now.config != nil || now.problem == problem {
		return
	}
	// Reported before it is set: the console shows the new state by itself, and the reason should
	// precede its consequences.
	for line := range strings.Lines(problem) {
		m.logConsole("configuration: " + strings.TrimSpace(line))
	}
	m.config.Update(func(a applied) applied { a.problem = problem; return a })
}

// needsSeed reports whether the machine has no configuration, and no unreadable file on STATE.
func (m *machine) needsSeed() bool {
	now, _ := m.config.Get()
	return now.config == nil && (m.bootMedium != "" || !hasStoredConfig())
}

// adopt activates the configuration of a medium, or returns an error.
func (m *machine) adopt(ctx context.Context, d seed.Document) error {
	next, problems := config.Parse(d.Name, d.Text)
	if len(problems) > 0 {
		return problems
	}
	own, err := owner()
	if err != nil {
		return err
	}
	if err := checkOperator(own, next); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := m.checkMachine(next); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := m.checkAccess(ctx, next.Cluster); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := awaitLinks(ctx, next, m.network.MissingLinks, linkTimeout); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if m.bootMedium == "" {
		if why, _ := m.storageProblem.Get(); why != "" {
			return fmt.Errorf("%s: no disk to store it on: %s", d.Name, why)
		}
		if err := configs.Put(d.Text); err != nil {
			return err
		}
		m.addToHistory(d.Text, "medium "+d.Name)
	}
	m.logConsole("configuration: taken from " + d.Name)
	m.config.Set(applied{config: next, applied: time.Now(), source: "medium " + d.Name, documents: d.Text})
	return nil
}

// checkOperator rejects a configuration that would lock out the operator of the machine (the CAs in
// PEM; empty if unclaimed), or that would admit other operators: every person with physical access
// can plug in a medium, and the medium is not authenticated. The CAs of a configuration must be CAs
// of the operator. The certificates of Cluster.spec.pki.machine only have the role of a machine,
// and are not checked.
func checkOperator(own []byte, next *config.Config) error {
	if len(own) == 0 {
		return nil
	}
	cas, err := pki.ParseCerts(own)
	if err != nil {
		return fmt.Errorf("operator's CA: %w", err)
	}
	owners := map[string]bool{}
	for _, ca := range cas {
		owners[pki.Fingerprint(ca)] = true
	}
	named := map[string]bool{}
	for _, a := range callingAuthorities(next) {
		id := pki.Fingerprint(a.ca)
		if !owners[id] {
			return fmt.Errorf("%s: cannot add the CA %q (%s): this machine is claimed, by its image or by pairing, and a medium cannot admit other operators; remove it from the medium, and apply it over the API as the operator of the machine", a.field, a.ca.Subject.CommonName, id)
		}
		if a.operator {
			named[id] = true
		}
	}
	if len(next.Machine.Spec.Trust.OperatorCAs) > 0 && len(named) < len(owners) {
		return errors.New("Machine.spec.trust.operatorCAs: cannot omit the CA of the operator who claimed this machine, by its image or by pairing: a medium cannot lock out the operator; add it to the list, or omit the list")
	}
	return nil
}

// callingAuthority is a CA of a configuration that can issue certificates for every role, up to
// admin (apid.OperatorCAsFile and apid.ClientCAsFile).
type callingAuthority struct {
	field    string // "Machine.spec.trust.operatorCAs[1]"
	ca       *x509.Certificate
	operator bool // it is in the list of operator CAs
}

// callingAuthorities returns all of them in a configuration. It includes accepted client CAs
// without a client CA, which are not trusted yet: a later change would activate them.
func callingAuthorities(c *config.Config) []callingAuthority {
	var out []callingAuthority
	for i, ca := range c.Machine.Spec.Trust.OperatorCAs {
		out = append(out, callingAuthority{fmt.Sprintf("Machine.spec.trust.operatorCAs[%d]", i), ca.X509(), true})
	}
	if c.Cluster == nil {
		return out
	}
	own := c.Cluster.Spec.PKI
	if !own.Client.Cert.IsZero() {
		out = append(out, callingAuthority{"Cluster.spec.pki.client.cert", own.Client.Cert.X509(), false})
	}
	for i, ca := range own.Accepted.Client {
		out = append(out, callingAuthority{fmt.Sprintf("Cluster.spec.pki.accepted.client[%d]", i), ca.X509(), false})
	}
	return out
}
