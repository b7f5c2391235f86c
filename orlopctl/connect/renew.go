package connect

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Renew requests a certificate with a new key for the caller. present is the present certificate of
// the caller. Renew returns an error if the new certificate is for another key or subject, or has
// expired.
func Renew(ctx context.Context, c *client.Client, present *pki.Leaf, ttl time.Duration) (*pki.Leaf, error) {
	leaf, request, err := gen.NewRequest()
	if err != nil {
		return nil, err
	}
	answer, err := c.Trust.Renew(ctx, &api.RenewRequest{Csr: request, Ttl: DurationOf(ttl)})
	if err != nil {
		return nil, err
	}
	if leaf.Cert, err = x509.ParseCertificate(answer.Certificate); err != nil {
		return nil, fmt.Errorf("certificate: cannot use the certificate from the machine: %w", err)
	}
	switch {
	case !pki.Matches(leaf.Cert, leaf.Key):
		err = errors.New("it is for another key")
	case leaf.Cert.Subject.String() != present.Cert.Subject.String():
		err = fmt.Errorf("it is for %s, and yours for %s", leaf.Cert.Subject, present.Cert.Subject)
	case !time.Now().Before(leaf.Cert.NotAfter):
		err = fmt.Errorf("it expired at %s; the machine's clock is behind, or yours ahead", leaf.Cert.NotAfter.Format(time.RFC3339))
	}
	if err != nil {
		return nil, fmt.Errorf("certificate: cannot use the certificate from the machine: %w; nothing was replaced", err)
	}
	return leaf, nil
}

// StoreRenewed stores a new certificate in context name, if the context still has the certificate
// of was. It also stores it in the other contexts of the same cluster that have this certificate.
func StoreRenewed(name string, was contexts.Context, leaf *pki.Leaf) error {
	return contexts.Change(func(f *contexts.File) error {
		for other, c := range f.Contexts {
			if c.Cert != was.Cert || c.Key != was.Key || other != name && (was.CA == "" || c.CA != was.CA) {
				continue
			}
			c.Cert, c.Key, c.RenewAfter = string(leaf.CertPEM()), string(leaf.KeyPEM()), renewAt(leaf)
			f.Contexts[other] = c
		}
		return nil
	})
}

// renewAt returns the time after two thirds of the remaining validity of a certificate.
func renewAt(leaf *pki.Leaf) time.Time {
	return time.Now().Add(time.Until(leaf.Cert.NotAfter) / 3 * 2).UTC().Truncate(time.Second)
}

// UsesContextCert reports whether a call uses an endpoint and the certificate of the context: no
// flag replaces them.
func (conn *Connector) UsesContextCert() bool {
	return conn.Flags.Cert == "" && conn.Flags.Key == "" && len(conn.Flags.Endpoints) == 0
}

// signAgain returns the context with a new certificate that the operator CA issues, if the present
// certificate is due for renewal or has expired. It returns the context unchanged if the operator
// CA or its key is not available.
func (conn *Connector) signAgain(name string, c contexts.Context) contexts.Context {
	leaf, is := gen.RenewalDue(c.Cert, c.Key)
	if !is || c.Operator == "" || !conn.UsesContextCert() {
		return c
	}
	ca, err := gen.ReadOperator(c.Operator)
	if err != nil {
		return c
	}
	// The directory may contain another CA now. A renewed certificate contains the fingerprint of
	// the CA that signed the first certificate of its lineage.
	if _, root := pki.LineageOf(leaf.Cert); leaf.Cert.CheckSignatureFrom(ca.Cert) != nil && root != pki.Fingerprint(ca.Cert) {
		return c
	}
	made, err := gen.IssueClient(ca, leaf.Cert.Subject.CommonName, leaf.Cert.Subject.Organization, gen.ClientTTL)
	if err != nil {
		return c
	}
	if err := StoreRenewed(name, c, made); err != nil {
		conn.ios.Errorln("a new certificate of yours cannot be stored: " + err.Error())
	}
	c.Cert, c.Key, c.RenewAfter = string(made.CertPEM()), string(made.KeyPEM()), renewAt(made)
	return c
}

// KeepFresh requests a new certificate for the context from the machine, if the present certificate
// is due for renewal. A failure is no error, because the present certificate is still valid.
func (conn *Connector) KeepFresh(ctx context.Context, c *client.Client, name string, chosen contexts.Context) {
	if !conn.UsesContextCert() {
		return
	}
	present, is := gen.RenewalDue(chosen.Cert, chosen.Key)
	if present == nil || chosen.RenewAfter.IsZero() && !is || time.Now().Before(chosen.RenewAfter) {
		return
	}
	leaf, err := Renew(ctx, c, present, 0)
	if err != nil || !leaf.Cert.NotAfter.After(present.Cert.NotAfter) {
		return
	}
	if err := StoreRenewed(name, chosen, leaf); err != nil {
		conn.ios.Errorln("your certificate was renewed, but cannot be stored: " + err.Error())
	}
}
