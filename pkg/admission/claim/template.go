package claim

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// MaxDocuments is the maximum size of the documents of a template, in bytes.
	MaxDocuments = 24 << 10
	// maxPrefix is the maximum length of the prefix of a name. A dash and nameDigits digits follow
	// the prefix.
	maxPrefix  = 40
	nameDigits = 8
)

// templateKind describes signed templates. The PEM headers of the signature contain the prefix and
// the expiry of the template, and a mark if only rules approve its machines (RuleOnly).
var templateKind = documentKind{
	noun: "template", context: "orlop-worker-template/1\n", block: "ORLOP WORKER TEMPLATE SIGNATURE",
	remedy: "sign it again (`orlopctl nodes template`)",
}

const (
	prefixHeader   = "Prefix"
	expiresHeader  = "Expires" // RFC 3339, UTC, seconds
	approvalHeader = "Approval"
	approvalRule   = "Rule" // the value of approvalHeader
)

// Template is a configuration for workers that an operator has signed.
type Template struct {
	// Documents are the documents of the configuration of a worker. The machine name in them is
	// Prefix.
	Documents []byte
	// Prefix is the start of the names of the workers.
	Prefix string
	// Expires is the end of the validity.
	Expires time.Time
	// RuleOnly limits the template to machines that a signed rule approves (Rule). If it is false,
	// a claim of the controllers is sufficient.
	RuleOnly bool
}

// Signed is a template with its signature, as an object of Kubernetes has it.
type Signed struct {
	Documents []byte `json:"documents"`
	// Signature is PEM: the signature, and the certificate of the operator.
	Signature []byte `json:"signature"`
}

// prefixPattern matches a DNS label.
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

// digest returns the signed value. The encoding is unambiguous: each part but the last ends with
// its only newline, and the last part, the digest of the documents, has a fixed length.
func (t Template) digest() []byte {
	documents := sha256.Sum256(t.Documents)
	sum := sha256.New()
	for _, part := range []string{templateKind.context, t.Prefix + "\n", t.expiry() + "\n"} {
		sum.Write([]byte(part))
	}
	if t.RuleOnly {
		sum.Write([]byte(approvalRule + "\n"))
	}
	sum.Write(documents[:])
	return sum.Sum(nil)
}

func (t Template) expiry() string { return t.Expires.UTC().Format(time.RFC3339) }

// NameOf returns the name of the worker with this key fingerprint (pki.KeyFingerprint): the prefix
// and the first digits of the fingerprint. So the name follows from the key, and no controller or
// control-plane machine can choose it.
func (t Template) NameOf(fingerprint string) string { return Name(t.Prefix, fingerprint) }

// Name returns the name of a worker, made from a prefix and the fingerprint of its key.
func Name(prefix, fingerprint string) string {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return prefix + "-" + digits[:min(len(digits), nameDigits)]
}

// Sign signs a template with the certificate of an operator. now is the present time.
func Sign(t Template, by *pki.Leaf, now time.Time) (Signed, error) {
	if err := t.check(); err != nil {
		return Signed{}, err
	}
	headers := map[string]string{prefixHeader: t.Prefix, expiresHeader: t.expiry()}
	if t.RuleOnly {
		headers[approvalHeader] = approvalRule
	}
	signature, err := templateKind.sign(t.digest(), headers, by, now, t.Expires)
	return Signed{Documents: t.Documents, Signature: signature}, err
}

// Verify returns the template and the certificate of its signer. It returns an error if the
// signature is invalid, if the certificate lacks the role admin or is not from one of the
// operators' CAs, or if the template has expired.
func (s Signed) Verify(operators []*x509.Certificate, now time.Time) (Template, *x509.Certificate, error) {
	t, signature, by, err := s.parse()
	if err != nil {
		return Template{}, nil, err
	}
	if err = templateKind.verify(t.digest(), signature, by, operators, now); err == nil {
		err = templateKind.checkExpiry(t.Expires, now)
	}
	if err != nil {
		return Template{}, nil, err
	}
	return t, by, nil
}

// Parse returns the template without verification of its signature, for callers that do not have
// the operators' CAs.
func (s Signed) Parse() (Template, error) {
	t, _, _, err := s.parse()
	return t, err
}

func (s Signed) parse() (t Template, signature []byte, by *x509.Certificate, err error) {
	block, by, err := templateKind.open(s.Signature)
	if err != nil {
		return t, nil, nil, err
	}
	t = Template{Documents: s.Documents, Prefix: block.Headers[prefixHeader], RuleOnly: block.Headers[approvalHeader] == approvalRule}
	if t.Expires, err = time.Parse(time.RFC3339, block.Headers[expiresHeader]); err != nil {
		return t, nil, nil, fmt.Errorf("template: cannot read its expiry: %w", err)
	}
	return t, block.Bytes, by, t.check()
}
