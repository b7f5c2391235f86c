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
	"slices"
	"strings"
)

// Certificate is an X.509 certificate. Its text format is PEM.
type Certificate struct {
	text string // canonical PEM
	cert *x509.Certificate
}

const wantCertificate = "one certificate in PEM (-----BEGIN CERTIFICATE-----)"

// ParseCertificate parses exactly one certificate in PEM. It ignores text around the PEM block,
// such as the output of `openssl x509 -text`.
func ParseCertificate(text string) (Certificate, error) {
	all, err := certificates(text, wantCertificate)
	if err != nil {
		return Certificate{}, err
	}
	if len(all) > 1 {
		return Certificate{}, &wrong{reason: fmt.Sprintf("there are %d certificates", len(all)), expected: wantCertificate, hint: "in a list, give each certificate as an item of its own"}
	}
	return all[0], nil
}

// certificates parses the certificates of a text, in order and without duplicates. want describes
// the expected text for errors.
func certificates(text, want string) ([]Certificate, error) {
	blocks, err := pemBlocks(text, want)
	if err != nil {
		return nil, err
	}
	if len(blocks) > maxBundle {
		return nil, &wrong{reason: fmt.Sprintf("there are %d PEM blocks", len(blocks)), expected: fmt.Sprintf("at most %d", maxBundle)}
	}
	var all []Certificate
	for _, block := range blocks {
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return nil, &wrong{reason: "it contains a private key", expected: want, hint: "a key is a secret and belongs only in key fields"}
		}
		if block.Type != "CERTIFICATE" {
			return nil, &wrong{reason: fmt.Sprintf("the PEM block is a %s", quote(block.Type)), expected: want}
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &wrong{reason: "not a certificate: " + oneLine(err), expected: want}
		}
		c := Certificate{text: string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})), cert: cert}
		if !slices.ContainsFunc(all, func(o Certificate) bool { return o.text == c.text }) {
			all = append(all, c)
		}
	}
	return all, nil
}

// maxBundle is the maximum number of certificates in a Bundle. A usual list of public CAs has about
// 150.
const maxBundle = 256

// Bundle is a list of trusted CA certificates, not the signed file of a version. Its text format is
// concatenated PEM. The zero value is empty.
type Bundle struct{ all []Certificate }

// ParseBundle parses the certificates of a text. It ignores text between PEM blocks. A text without
// certificates, or with a private key or another kind of PEM block, is an error.
func ParseBundle(text string) (Bundle, error) {
	all, err := certificates(text, "certificates in PEM (-----BEGIN CERTIFICATE-----)")
	return Bundle{all}, err
}

// NewBundle returns a Bundle of the certificates.
func NewBundle(all ...Certificate) Bundle { return Bundle{all} }

// Certificates returns the certificates.
func (b Bundle) Certificates() []Certificate { return b.all }

// IsZero reports whether the Bundle is empty.
func (b Bundle) IsZero() bool { return len(b.all) == 0 }

// PEM returns the certificates in PEM; "" for an empty Bundle.
func (b Bundle) PEM() string {
	var out strings.Builder
	for _, c := range b.all {
		out.WriteString(c.text)
	}
	return out.String()
}

// String returns the names of the certificates on one line.
func (b Bundle) String() string {
	var all []string
	for _, c := range b.all {
		all = append(all, c.String())
	}
	return strings.Join(all, ", ")
}

// MarshalText returns PEM.
func (b Bundle) MarshalText() ([]byte, error) { return []byte(b.PEM()), nil }

// UnmarshalText parses the text by ParseBundle.
func (b *Bundle) UnmarshalText(text []byte) error {
	v, err := ParseBundle(string(text))
	if err == nil {
		*b = v
	}
	return err
}

// PEM returns the certificate in PEM; "" for the zero value.
func (c Certificate) PEM() string { return c.text }

// X509 returns the certificate; nil for the zero value. Do not modify it.
func (c Certificate) X509() *x509.Certificate { return c.cert }

// X509s returns the certificates of a list. Do not modify them.
func X509s(list []Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range list {
		out = append(out, c.X509())
	}
	return out
}

// IsZero reports whether there is no certificate.
func (c Certificate) IsZero() bool { return c.cert == nil }

// String returns the certificate on one line: subject, end of validity and the first half of the
// SHA-256 fingerprint.
func (c Certificate) String() string {
	if c.cert == nil {
		return ""
	}
	sum := sha256.Sum256(c.cert.Raw)
	return fmt.Sprintf("certificate %s until %s sha256:%s", quote(c.cert.Subject.String()), c.cert.NotAfter.UTC().Format("2006-01-02"), hex.EncodeToString(sum[:16]))
}

// MarshalText returns PEM.
func (c Certificate) MarshalText() ([]byte, error) { return []byte(c.text), nil }

// UnmarshalText parses the text by ParseCertificate.
func (c *Certificate) UnmarshalText(text []byte) error {
	v, err := ParseCertificate(string(text))
	if err == nil {
		*c = v
	}
	return err
}

// publicKey parses exactly one public key in PEM (PKIX). It returns the key, and its PEM without
// surrounding text.
func publicKey(text, want string) (canonical string, key crypto.PublicKey, err error) {
	blocks, err := pemBlocks(text, want)
	if err != nil {
		return "", nil, err
	}
	switch {
	case len(blocks) != 1:
		return "", nil, &wrong{reason: fmt.Sprintf("there are %d PEM blocks", len(blocks)), expected: want, hint: "in a list, give each key as an item of its own"}
	case blocks[0].Type != "PUBLIC KEY":
		return "", nil, &wrong{reason: fmt.Sprintf("the PEM block is a %s", quote(blocks[0].Type)), expected: want}
	}
	if key, err = x509.ParsePKIXPublicKey(blocks[0].Bytes); err != nil {
		return "", nil, &wrong{reason: "not a public key: " + oneLine(err), expected: want}
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: blocks[0].Type, Bytes: blocks[0].Bytes})), key, nil
}

// keyName returns a name of a public key in PEM: its kind and the first 8 bytes of its SHA-256.
func keyName(kind, text string) string {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return fmt.Sprintf("%s sha256:%x…", kind, sum[:8])
}

// PrivateKey is a private key: ECDSA (P-256, P-384, P-521), Ed25519, or RSA of at least 2048 bits.
// Its text format is PEM; it is a secret.
type PrivateKey struct{ Secret }

// ParsePrivateKey parses exactly one key in PEM: PKCS #8, SEC 1 or PKCS #1, not encrypted. It
// ignores text around the PEM block.
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
		// The errors of the parsers can quote the key, so the returned error omits them.
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

// PEM returns the key in PEM. Write it only to a file that only its user can read.
func (k PrivateKey) PEM() string { return k.Reveal() }

// Signer returns the key; nil for the zero value.
func (k PrivateKey) Signer() crypto.Signer {
	block, _ := pem.Decode([]byte(k.Reveal()))
	if block == nil {
		return nil
	}
	key, err := parseKey(block)
	if err != nil {
		return nil // cannot happen: ParsePrivateKey rejects invalid keys
	}
	return key
}

// UnmarshalText parses the text by ParsePrivateKey.
func (k *PrivateKey) UnmarshalText(text []byte) error {
	v, err := ParsePrivateKey(string(text))
	if err == nil {
		*k = v
	}
	return err
}

// onlyBlock returns the only PEM block of a text. openssl writes a block with the curve parameters
// before an EC key. onlyBlock ignores this block, because the key contains the parameters, too.
func onlyBlock(text, want string) (*pem.Block, error) {
	blocks, err := pemBlocks(text, want)
	if err != nil {
		return nil, err
	}
	if len(blocks) == 2 && blocks[0].Type == "EC PARAMETERS" && blocks[1].Type == "EC PRIVATE KEY" {
		blocks = blocks[1:]
	}
	if len(blocks) > 1 {
		return nil, &wrong{reason: "it contains more than one PEM block", expected: want}
	}
	return blocks[0], nil
}

// pemBlocks returns the PEM blocks of a text (RFC 7468); no block is an error. It ignores lines
// outside of blocks (section 5.2), but a line that looks like a part of a block is an error. It
// accepts all line endings, a byte order mark and spaces around a line.
func pemBlocks(text, want string) ([]*pem.Block, error) {
	damaged := &wrong{reason: "the PEM block is damaged", expected: want, hint: "look for missing lines and inconsistent indentation"}
	var all []*pem.Block
	var block strings.Builder // the current block
	inside := false
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff"))
	for line := range strings.Lines(text) {
		line = strings.Trim(line, " \t\n")
		begins, ends := strings.HasPrefix(line, "-----BEGIN "), strings.HasPrefix(line, "-----END ")
		switch {
		case begins == inside && (begins || ends), !inside && !begins && looksEncoded(line):
			return nil, damaged
		case begins:
			inside = true
			block.Reset()
		case !inside:
			continue
		}
		block.WriteString(line + "\n")
		if !ends {
			continue
		}
		b, rest := pem.Decode([]byte(block.String()))
		if b == nil || len(rest) > 0 {
			return nil, damaged
		}
		all, inside = append(all, b), false
	}
	switch {
	case inside:
		return nil, damaged
	case len(all) == 0:
		return nil, &wrong{reason: "not PEM", expected: want, hint: "write it as a block: a | after the field's name, the text indented below it"}
	}
	return all, nil
}

// looksEncoded reports whether a line outside of a block is probably from a damaged block: it looks
// like base64, or contains a part of a BEGIN or END line.
func looksEncoded(line string) bool {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
	return strings.Contains(line, "-----") || len(line) >= 60 && strings.Trim(line, alphabet) == ""
}

// oneLine returns an error's text without line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
