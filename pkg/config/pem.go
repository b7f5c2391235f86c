package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
)

// Certificate is one X.509 certificate. It is written in PEM.
type Certificate struct {
	text string // canonical PEM
	cert *x509.Certificate
}

// ParseCertificate reads exactly one certificate in PEM.
func ParseCertificate(text string) (Certificate, error) {
	const want = "one certificate in PEM (-----BEGIN CERTIFICATE-----)"
	block, err := onlyBlock(text, want)
	if err != nil {
		return Certificate{}, err
	}
	if block.Type != "CERTIFICATE" {
		return Certificate{}, &wrong{reason: fmt.Sprintf("the PEM block is a %s", quote(block.Type)), expected: want}
	}
	cert, perr := x509.ParseCertificate(block.Bytes)
	if perr != nil {
		return Certificate{}, &wrong{reason: "not a certificate: " + oneLine(perr), expected: want}
	}
	return Certificate{text: string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})), cert: cert}, nil
}

// PEM is the certificate as text; empty when there is none.
func (c Certificate) PEM() string { return c.text }

// X509 is the certificate; nil when there is none. Do not change it.
func (c Certificate) X509() *x509.Certificate { return c.cert }

// IsZero says that there is no certificate.
func (c Certificate) IsZero() bool { return c.cert == nil }

// String names the certificate in one line: subject, end of validity and the SHA-256 fingerprint's first half.
func (c Certificate) String() string {
	if c.cert == nil {
		return ""
	}
	sum := sha256.Sum256(c.cert.Raw)
	return fmt.Sprintf("certificate %s until %s sha256:%s", quote(c.cert.Subject.String()), c.cert.NotAfter.UTC().Format("2006-01-02"), hex.EncodeToString(sum[:16]))
}

// MarshalText is the PEM text.
func (c Certificate) MarshalText() ([]byte, error) { return []byte(c.text), nil }

// UnmarshalText is ParseCertificate.
func (c *Certificate) UnmarshalText(text []byte) error {
	v, err := ParseCertificate(string(text))
	if err == nil {
		*c = v
	}
	return err
}

// PrivateKey is a private key: ECDSA (P-256, P-384, P-521), Ed25519, or RSA of at least 2048 bits. It is written in
// PEM and is a secret.
type PrivateKey struct{ Secret }

// ParsePrivateKey reads exactly one key in PEM: PKCS #8, SEC 1 or PKCS #1, not encrypted.
func ParsePrivateKey(text string) (PrivateKey, error) {
	if strings.TrimSpace(text) == Redacted {
		return PrivateKey{}, errRedacted()
	}
	const want = "one private key in PEM (-----BEGIN PRIVATE KEY-----)"
	block, err := onlyBlock(text, want)
	if err != nil {
		return PrivateKey{}, err
	}
	key, kerr := parseKey(block)
	if kerr != nil {
		return PrivateKey{}, &wrong{reason: oneLine(kerr), expected: want}
	}
	if r, ok := key.(*rsa.PrivateKey); ok && r.N.BitLen() < 2048 {
		return PrivateKey{}, &wrong{reason: fmt.Sprintf("an RSA key of %d bits", r.N.BitLen()), expected: "at least 2048 bits, or ECDSA P-256"}
	}
	return PrivateKey{NewSecret(string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})))}, nil
}

func parseKey(block *pem.Block) (crypto.Signer, error) {
	if _, encrypted := block.Headers["DEK-Info"]; encrypted || block.Type == "ENCRYPTED PRIVATE KEY" {
		return nil, fmt.Errorf("the key is encrypted")
	}
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("the PEM block is a %s", quote(block.Type))
	}
	if err != nil {
		// The parsers' own words may quote what they read, so they are not passed on.
		return nil, fmt.Errorf("not a private key of the kind that its PEM block names")
	}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		if k.Params().BitSize >= 256 {
			return k, nil
		}
		return nil, fmt.Errorf("an ECDSA key of %d bits; at least 256 are needed", k.Params().BitSize)
	case ed25519.PrivateKey:
		return k, nil
	case *rsa.PrivateKey:
		return k, nil
	}
	return nil, fmt.Errorf("a key of the kind %T", key)
}

// PEM is the key as text. Write it to a file of its user, nowhere else.
func (k PrivateKey) PEM() string { return k.Reveal() }

// Signer is the key itself; nil when there is none.
func (k PrivateKey) Signer() crypto.Signer {
	block, _ := pem.Decode([]byte(k.Reveal()))
	if block == nil {
		return nil
	}
	key, err := parseKey(block)
	if err != nil {
		return nil // only the zero value comes here: ParsePrivateKey lets nothing else in
	}
	return key
}

// UnmarshalText is ParsePrivateKey.
func (k *PrivateKey) UnmarshalText(text []byte) error {
	v, err := ParsePrivateKey(string(text))
	if err == nil {
		*k = v
	}
	return err
}

// onlyBlock finds the one PEM block of a text.
func onlyBlock(text, want string) (*pem.Block, error) {
	block, rest := pem.Decode([]byte(text))
	switch {
	case block == nil && !strings.Contains(text, "-----BEGIN "):
		return nil, &wrong{reason: "not PEM", expected: want, hint: "write it as a block: a | after the field's name, the text indented below it"}
	case block == nil:
		return nil, &wrong{reason: "the PEM block is damaged", expected: want, hint: "look for missing lines and for an indentation that changes"}
	case !strings.HasPrefix(strings.TrimSpace(text), "-----BEGIN "):
		return nil, &wrong{reason: "there is text before the PEM block", expected: want}
	case strings.TrimSpace(string(rest)) != "":
		return nil, &wrong{reason: "there is more after the first PEM block", expected: want}
	}
	return block, nil
}

// oneLine is an error's text without line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
