package claim

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// maxSignature is the maximum size of a signature with its certificate, in bytes.
	maxSignature = 8 << 10
	// maxLife is the longest validity of a signed document.
	maxLife = 366 * 24 * time.Hour
)

// documentKind is a kind of signed documents: templates or rules.
type documentKind struct {
	noun    string // name of the kind in errors
	context string // start of the signed value; it differs for each kind
	block   string // PEM type of a signature
	remedy  string // advice in errors
}

// sign returns a signature with the certificate of an operator, in PEM. now is the present time.
func (k documentKind) sign(digest []byte, headers map[string]string, by *pki.Leaf, now, expires time.Time) ([]byte, error) {
	switch {
	case !isAdmin(by.Cert):
		return nil, fmt.Errorf("%s: the certificate %s has not the role %s", k.noun, by.Cert.Subject, pki.RoleAdmin)
	case !expires.After(now) || expires.Sub(now) > maxLife:
		return nil, fmt.Errorf("%s: the validity is out of range; at most a year is allowed", k.noun)
	case expires.After(by.Cert.NotAfter):
		return nil, fmt.Errorf("%s: the certificate %s expires at %s, before the %[1]s", k.noun, by.Cert.Subject, by.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	signature, err := ecdsa.SignASN1(rand.Reader, by.Key, digest)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot sign: %w", k.noun, err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: k.block, Headers: headers, Bytes: signature}), pki.EncodeCert(by.Cert)...), nil
}

// open returns the PEM block of a signature, and the certificate after the block. It does not
// verify the signature.
func (k documentKind) open(signature []byte) (*pem.Block, *x509.Certificate, error) {
	if len(signature) > maxSignature {
		return nil, nil, fmt.Errorf("%s: the signature has %d bytes; at most %d are allowed", k.noun, len(signature), maxSignature)
	}
	block, rest := pem.Decode(signature)
	if block == nil || block.Type != k.block {
		return nil, nil, fmt.Errorf("%s: the signature does not begin with a block %q", k.noun, k.block)
	}
	by, err := pki.ParseCert(rest)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: the certificate of its signature: %w", k.noun, err)
	}
	return block, by, nil
}

// verify returns nil if the signature is valid, and its certificate has the role admin and is from
// one of the operators' CAs. Otherwise it returns an error.
func (k documentKind) verify(digest, signature []byte, by *x509.Certificate, operators []*x509.Certificate, now time.Time) error {
	roots := x509.NewCertPool()
	for _, ca := range operators {
		roots.AddCert(ca)
	}
	if _, err := by.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("%s: the certificate of its signature is not of an operator of this machine: %w", k.noun, err)
	}
	key, ok := by.PublicKey.(*ecdsa.PublicKey)
	switch {
	case !isAdmin(by):
		return fmt.Errorf("%s: the certificate of its signature has not the role %s", k.noun, pki.RoleAdmin)
	case !ok || !ecdsa.VerifyASN1(key, digest, signature):
		return errors.New(k.noun + ": the signature is not that of this text; after a change, " + k.remedy)
	}
	return nil
}

// checkExpiry returns an error for a document that has expired.
func (k documentKind) checkExpiry(expires, now time.Time) error {
	if now.Before(expires) {
		return nil
	}
	return fmt.Errorf("%s: expired at %s; %s", k.noun, expires.UTC().Format(time.RFC3339), k.remedy)
}

// isAdmin reports whether a certificate has the role of an administrator.
func isAdmin(c *x509.Certificate) bool { return slices.Contains(c.Subject.Organization, pki.RoleAdmin) }
