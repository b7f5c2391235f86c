package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "EC PRIVATE KEY" // SEC 1: Kubernetes expects this block for an ECDSA key
	blockKey8        = "PRIVATE KEY"    // PKCS #8: ParseKey also accepts this block
	blockPublic      = "PUBLIC KEY"
)

// CertPEM returns the certificate of the CA in PEM.
func (ca *CA) CertPEM() []byte { return EncodeCert(ca.Cert) }

// KeyPEM returns the private key of the CA in PEM, a secret.
func (ca *CA) KeyPEM() []byte { return EncodeKey(ca.Key) }

// CertPEM returns the certificate in PEM.
func (l *Leaf) CertPEM() []byte { return EncodeCert(l.Cert) }

// KeyPEM returns the private key in PEM, a secret.
func (l *Leaf) KeyPEM() []byte { return EncodeKey(l.Key) }

// EncodeCert encodes a certificate as PEM.
func EncodeCert(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: cert.Raw})
}

// EncodeCerts encodes certificates as PEM, sorted and without duplicates. So the same set always
// gives the same text.
func EncodeCerts(certs ...*x509.Certificate) []byte {
	sorted := slices.SortedFunc(slices.Values(certs), func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	var out []byte
	for _, c := range slices.CompactFunc(sorted, (*x509.Certificate).Equal) {
		out = append(out, EncodeCert(c)...)
	}
	return out
}

// EncodeKey encodes a P-256 private key as PEM (SEC 1, RFC 5915).
func EncodeKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		// The only possible error is an unknown curve. This package creates and parses only P-256
		// keys.
		panic(fmt.Sprintf("pki: a key that is not on P-256: %v", err))
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der})
}

// EncodePublicKey encodes the public key of a private key as PEM (PKIX).
func EncodePublicKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		panic(fmt.Sprintf("pki: a key that is not on P-256: %v", err)) // see EncodeKey
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockPublic, Bytes: der})
}

// ParseCerts parses one or more certificates from PEM, in their order. It fails for any other PEM
// block, so it detects a key in the wrong file.
func ParseCerts(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != blockCertificate {
			return nil, fmt.Errorf("certificates: cannot read: found a PEM block %q, expected only %q", block.Type, blockCertificate)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificates: cannot read number %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	// pem.Decode skips invalid blocks. The number of BEGIN lines shows whether it has skipped one.
	if n := bytes.Count(text, []byte("-----BEGIN ")); n > len(certs) && len(certs) > 0 {
		return nil, fmt.Errorf("certificates: cannot read: %d of %d PEM blocks are damaged", n-len(certs), n)
	}
	if len(certs) == 0 {
		return nil, errors.New("certificates: cannot read: no PEM block CERTIFICATE found")
	}
	return certs, nil
}

// HaveCommonCert reports whether two PEM texts contain an equal certificate. It returns false if a
// text cannot be parsed.
func HaveCommonCert(a, b string) bool {
	these, err := ParseCerts([]byte(a))
	others, err2 := ParseCerts([]byte(b))
	return err == nil && err2 == nil && slices.ContainsFunc(these, func(c *x509.Certificate) bool { return slices.ContainsFunc(others, c.Equal) })
}

// ParseCert parses a certificate from PEM. It fails if the text contains more than one.
func ParseCert(text []byte) (*x509.Certificate, error) {
	certs, err := ParseCerts(text)
	if err != nil {
		return nil, err
	}
	if len(certs) != 1 {
		return nil, fmt.Errorf("certificate: cannot read: found %d, expected one", len(certs))
	}
	return certs[0], nil
}

// ParseKey parses a P-256 private key from PEM (SEC 1 or PKCS #8). It fails for any other key.
func ParseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("key: cannot read: no PEM block found")
	}
	var key *ecdsa.PrivateKey
	switch block.Type {
	case blockKey:
		parsed, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("key: cannot read: %w", err)
		}
		key = parsed
	case blockKey8:
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("key: cannot read: %w", err)
		}
		key, _ = parsed.(*ecdsa.PrivateKey)
	default:
		return nil, fmt.Errorf("key: cannot read: found a PEM block %q, expected %q or %q", block.Type, blockKey, blockKey8)
	}
	if key == nil || key.Curve != elliptic.P256() {
		return nil, errors.New("key: cannot use: only ECDSA keys on P-256 are supported")
	}
	return key, nil
}

// ParseLeaf parses a certificate and its private key from PEM. It fails if the key does not belong
// to the certificate.
func ParseLeaf(certPEM, keyPEM []byte) (*Leaf, error) {
	cert, err := ParseCert(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := ParseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	if !Matches(cert, key) {
		return nil, fmt.Errorf("certificate %q: cannot use: the key belongs to another certificate", cert.Subject.CommonName)
	}
	return &Leaf{Cert: cert, Key: key}, nil
}

// ParseCA parses a CA certificate and its private key from PEM. It fails if the key does not belong
// to the certificate, or if the certificate is no CA certificate.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	leaf, err := ParseLeaf(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	if !leaf.Cert.IsCA {
		return nil, fmt.Errorf("CA %q: cannot use: %w", leaf.Cert.Subject.CommonName, errNotCA)
	}
	return &CA{Cert: leaf.Cert, Key: leaf.Key}, nil
}

// NewServiceAccountKey creates a key that signs the tokens of service accounts. It returns the
// private key and the public key in PEM.
func NewServiceAccountKey() (private, public []byte, err error) {
	key, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	return EncodeKey(key), EncodePublicKey(key), nil
}
