package hosts

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Adopter makes the configuration in the answer to an inventory active, on a machine without a
// configuration. Two conditions apply: the operator of the machine has signed the template, and the
// sender of the answer is a control-plane machine of the cluster that the template names.
type Adopter struct {
	// Installing reports whether an installation has begun: then the machine already has a
	// configuration to install.
	Installing func() bool
	// Owner returns the CA of the operator of the machine, in PEM; empty if the machine is
	// unclaimed.
	Owner func() ([]byte, error)
	// Key returns the machine key; nil before it was read.
	Key func() *ecdsa.PrivateKey
	// Machines returns the CAs of the cluster's machines that a configuration names.
	Machines func(*config.Config) *x509.CertPool
	// Apply makes documents active for a caller, unless the machine has a configuration.
	Apply func(ctx context.Context, by api.Caller, documents []byte) error
}

// Adopt verifies the template in an answer that came from an address, and makes its documents
// active.
func (a Adopter) Adopt(ctx context.Context, from netip.Addr, answer inventory.Answer) error {
	if a.Installing() {
		return nil
	}
	owner, err := a.Owner()
	if err != nil {
		return err
	}
	if len(owner) == 0 {
		return errors.New("this machine has no operator, so no signature is valid; an operator pairs it first (`orlopctl pair`)")
	}
	operators, err := pki.ParseCerts(owner)
	if err != nil {
		return err
	}
	key := a.Key()
	if key == nil {
		return errors.New("the machine key is not read yet")
	}
	documents, by, err := a.documents(*answer.Template, operators, pki.KeyFingerprint(&key.PublicKey), from, answer.Peer, time.Now())
	if err != nil {
		return err
	}
	return a.Apply(ctx, signer(by, operators, from), documents)
}

// signer returns the caller for the activation of a template: by is the certificate that signed the
// template, from the address that sent it.
func signer(by *x509.Certificate, operators []*x509.Certificate, from netip.Addr) api.Caller {
	caller := api.Caller{Subject: by.Subject.String(), Name: by.Subject.CommonName, Role: pki.RoleAdmin[len(pki.RolePrefix):], Serial: pki.Serial(by), Peer: from.String()}
	if i := slices.IndexFunc(operators, func(ca *x509.Certificate) bool { return pki.SignedBy(by, ca) }); i >= 0 {
		caller.Issuer = pki.Fingerprint(operators[i])
	}
	return caller
}

// documents verifies the template s and returns its documents, with the name of this machine added,
// and the certificate that signed them. It makes all checks that need no state of the machine.
func (a Adopter) documents(s claim.Signed, operators []*x509.Certificate, fingerprint string, from netip.Addr, peer []*x509.Certificate, now time.Time) ([]byte, *x509.Certificate, error) {
	t, by, err := s.Verify(operators, now)
	if err != nil {
		return nil, nil, err
	}
	documents, err := config.Merge(t.Documents, fmt.Appendf(nil, "kind: Machine\nmetadata: {name: %s}\n", t.NameOf(fingerprint)))
	if err != nil {
		return nil, nil, err
	}
	next, problems := config.Parse("template", documents)
	if err := problems.Err(); err != nil {
		return nil, nil, err
	}
	if !next.IsWorker() || next.Machine.Spec.Join == nil || !next.Machine.Spec.Join.Ticket.IsZero() {
		return nil, nil, errors.New("template: is not the configuration of a worker that requests to join; `orlopctl nodes template` makes one")
	}
	if err := pki.VerifyServer(peer, a.Machines(next), from.WithZone("").String(), now); err != nil {
		return nil, nil, fmt.Errorf("the sender is no machine of the cluster that the template names: %w", err)
	}
	if pki.TicketOf(peer[0]) != "" {
		return nil, nil, errors.New("the sender is a worker; only a control-plane machine gives a configuration")
	}
	return documents, by, nil
}
