package claim

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// MaxDocuments is the maximum size of the documents of a template, in bytes.
	MaxDocuments = 24 << 10
	// maxSignature is the maximum size of a signature with its certificate, in bytes.
	maxSignature = 8 << 10
	// maxLife is the longest validity of a template.
	maxLife = 366 * 24 * time.Hour
	// maxPrefix is the maximum length of the start of a name: a dash and nameDigits follow.
	maxPrefix  = 40
	nameDigits = 8
)

// context is the start of the signed value, so that the signature has no meaning elsewhere.
const context = "orlop-worker-template/1\n"

// signatureBlock is the PEM type of a signature. Its headers are the prefix and the end of the
// template.
const (
	signatureBlock = "ORLOP WORKER TEMPLATE SIGNATURE"
	prefixHeader   = "Prefix"
	expiresHeader  = "Expires" // RFC 3339, UTC, seconds
)

// Template is a configuration for workers that an operator has signed.
type Template struct {
	// Documents are the documents of the configuration of a worker. The name in them is Prefix.
	Documents []byte
	// Prefix is the start of the names of the workers.
	Prefix string
	// Expires is the end of the validity.
	Expires time.Time
}

// Signed is a template with its signature, as an object of Kubernetes has it.
type Signed struct {
	Documents []byte `json:"documents"`
	// Signature is PEM: the signature, and the certificate of the operator.
	Signature []byte `json:"signature"`
}

// prefixPattern is a label of DNS.
var prefixPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// check returns an error for a template out of bounds.
func (t Template) check() error {
	switch {
	case len(t.Documents) == 0 || len(t.Documents) > MaxDocuments:
		return fmt.Errorf("template: has %d bytes of documents; 1 to %d are allowed", len(t.Documents), MaxDocuments)
	case len(t.Prefix) > maxPrefix || !prefixPattern.MatchString(t.Prefix):
		return fmt.Errorf("template: the prefix %.50q is no label of DNS of at most %d characters", t.Prefix, maxPrefix)
	case !t.Expires.Equal(t.Expires.Truncate(time.Second)):
		return errors.New("template: the expiry is not in whole seconds")
	}
	return nil
}

// digest returns the signed value. Each part but the documents ends with a newline, and contains no
// other; the documents have a digest of fixed length.
func (t Template) digest() []byte {
	documents := sha256.Sum256(t.Documents)
	sum := sha256.New()
	for _, part := range [][]byte{[]byte(context), []byte(t.Prefix + "\n"), []byte(t.expiry() + "\n"), documents[:]} {
		sum.Write(part)
	}
	return sum.Sum(nil)
}

func (t Template) expiry() string { return t.Expires.UTC().Format(time.RFC3339) }

// NameOf returns the name of the worker with a key (pki.KeyFingerprint): the prefix and the first
// digits of the fingerprint. So neither the controllers nor a control-plane machine choose a name.
func (t Template) NameOf(fingerprint string) string { return Name(t.Prefix, fingerprint) }

// Name returns the name of the worker with a key, for a prefix.
func Name(prefix, fingerprint string) string {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return prefix + "-" + digits[:min(len(digits), nameDigits)]
}

// Sign signs a template with the certificate of an operator. now is the present time.
func Sign(t Template, by *pki.Leaf, now time.Time) (Signed, error) {
	if err := t.check(); err != nil {
		return Signed{}, err
	}
	switch {
	case !isAdmin(by.Cert):
		return Signed{}, fmt.Errorf("template: the certificate %s has not the role %s", by.Cert.Subject, pki.RoleAdmin)
	case !t.Expires.After(now) || t.Expires.Sub(now) > maxLife:
		return Signed{}, errors.New("template: the validity is out of range; at most a year is allowed")
	case t.Expires.After(by.Cert.NotAfter):
		return Signed{}, fmt.Errorf("template: the certificate %s expires at %s, before the template", by.Cert.Subject, by.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	signature, err := ecdsa.SignASN1(rand.Reader, by.Key, t.digest())
	if err != nil {
		return Signed{}, fmt.Errorf("template: cannot sign: %w", err)
	}
	block := &pem.Block{Type: signatureBlock, Headers: map[string]string{prefixHeader: t.Prefix, expiresHeader: t.expiry()}, Bytes: signature}
	return Signed{Documents: t.Documents, Signature: append(pem.EncodeToMemory(block), pki.EncodeCert(by.Cert)...)}, nil
}

// Verify returns the template, if the signature is that of an admin certificate of a CA of the
// operators and the template has not expired, and the certificate.
func (s Signed) Verify(operators []*x509.Certificate, now time.Time) (Template, *x509.Certificate, error) {
	t, signature, by, err := s.parse()
	if err != nil {
		return Template{}, nil, err
	}
	roots := x509.NewCertPool()
	for _, ca := range operators {
		roots.AddCert(ca)
	}
	if _, err := by.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return Template{}, nil, fmt.Errorf("template: the certificate of its signature is not of an operator of this machine: %w", err)
	}
	key, ok := by.PublicKey.(*ecdsa.PublicKey)
	switch {
	case !isAdmin(by):
		return Template{}, nil, fmt.Errorf("template: the certificate of its signature has not the role %s", pki.RoleAdmin)
	case !ok || !ecdsa.VerifyASN1(key, t.digest(), signature):
		return Template{}, nil, errors.New("template: the signature is not that of these documents; sign them again after a change (`orlopctl nodes template`)")
	case !now.Before(t.Expires):
		return Template{}, nil, fmt.Errorf("template: expired at %s; sign it again (`orlopctl nodes template`)", t.expiry())
	}
	return t, by, nil
}

// Parse returns the template without a verification, for a reader without the CAs of operators.
func (s Signed) Parse() (Template, error) {
	t, _, _, err := s.parse()
	return t, err
}

func (s Signed) parse() (t Template, signature []byte, by *x509.Certificate, err error) {
	if len(s.Signature) > maxSignature {
		return t, nil, nil, fmt.Errorf("template: the signature has %d bytes; at most %d are allowed", len(s.Signature), maxSignature)
	}
	block, rest := pem.Decode(s.Signature)
	if block == nil || block.Type != signatureBlock {
		return t, nil, nil, fmt.Errorf("template: the signature does not begin with a block %q", signatureBlock)
	}
	if by, err = pki.ParseCert(rest); err != nil {
		return t, nil, nil, fmt.Errorf("template: the certificate of its signature: %w", err)
	}
	t = Template{Documents: s.Documents, Prefix: block.Headers[prefixHeader]}
	if t.Expires, err = time.Parse(time.RFC3339, block.Headers[expiresHeader]); err != nil {
		return t, nil, nil, fmt.Errorf("template: cannot read its expiry: %w", err)
	}
	return t, block.Bytes, by, t.check()
}

// isAdmin reports whether a certificate has the role of an administrator.
func isAdmin(c *x509.Certificate) bool { return slices.Contains(c.Subject.Organization, pki.RoleAdmin) }
