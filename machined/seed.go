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

// followSeeds takes a configuration from a medium that is plugged in later, and the disk that it
// asks for.
func (m *machine) followSeeds(ctx context.Context) {
	for w := m.disks.Watch(); ; {
		if _, _, err := w.Next(ctx); err != nil {
			return
		}
		m.takeSeed(ctx)
		m.installUnattended(ctx)
	}
}

// takeSeed takes the configuration that lies on a labelled medium, if the machine has none. An
// installed machine keeps it on STATE, as if it had been applied, so that the medium can go; one
// that runs from memory installs itself with it. What is wrong with it is on the console and in
// topic "configuration".
//
// The search holds no lock: a medium that does not answer would keep the operator from pairing and
// from applying a configuration. What it finds is taken only if the machine still has no
// configuration then.
func (m *machine) takeSeed(ctx context.Context) {
	if !m.wantsSeed() {
		return
	}
	document, err := seed.Find(ctx, m.prober)
	m.applying.Lock()
	defer m.applying.Unlock()
	if !m.wantsSeed() {
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
	// Said before it is set: the console shows what is set by itself, and the reason comes before
	// what follows from it.
	for line := range strings.Lines(problem) {
		m.say("configuration: " + strings.TrimSpace(line))
	}
	m.config.Update(func(a applied) applied { a.problem = problem; return a })
}

// wantsSeed reports whether the machine has no configuration, and none on STATE that cannot be
// read.
func (m *machine) wantsSeed() bool {
	now, _ := m.config.Get()
	return now.config == nil && (m.medium != "" || !stored())
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
	if err := awaitLinks(ctx, next, m.network.MissingLinks, linkTime); err != nil {
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

// keepsOperator refuses a configuration that would lock out the operator whom the machine belongs
// to (the CAs in PEM; empty for nobody), or that would let anyone else call as an operator: whoever
// stands before the machine can plug in a medium, and nothing about a medium is authenticated. An
// authority counts as the owner's when it is one of those CAs. The certificates of
// Cluster.spec.pki.machine give no more than the role of a machine, and are not looked at.
func keepsOperator(own []byte, next *config.Config) error {
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
			return fmt.Errorf("%s: cannot add the authority %q (%s): this machine belongs to an operator, by its image or by pairing, and a medium cannot let others call it; remove it from the medium, and apply it over the API as that operator", a.field, a.ca.Subject.CommonName, id)
		}
		if a.operator {
			named[id] = true
		}
	}
	if len(next.Machine.Spec.Trust.OperatorCAs) > 0 && len(named) < len(owners) {
		return errors.New("Machine.spec.trust.operatorCAs: cannot leave out the authority of the operator that this machine belongs to, by its image or by pairing: a medium cannot take the machine from its operator; add it to the list, or leave the list out")
	}
	return nil
}

// callingAuthority is a CA of a configuration whose certificates may give every role, up to admin
// (apid.OperatorsFile and apid.ClientsFile).
type callingAuthority struct {
	field    string // "Machine.spec.trust.operatorCAs[1]"
	ca       *x509.Certificate
	operator bool // it is in the list of operators
}

// callingAuthorities are all of a configuration. The accepted client CAs are named even where there
// is no client CA, without which they do not count: a later change would bring them into force.
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
