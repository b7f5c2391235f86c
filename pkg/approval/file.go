package approval

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// purpose begins the signed value, so that a signature is valid for an approval only.
	purpose        = "orlop-approval/1\n"
	signatureBlock = "ORLOP APPROVAL SIGNATURE" // PEM type
	keyBlock       = "PUBLIC KEY"               // PEM type
	maxSignatures  = 8
	// MaxFile is the maximum size of a file in bytes.
	MaxFile = MaxText + maxSignatures*1024
)

// File is an approval: the text of a request, and the signatures on this text.
type File struct {
	Text       []byte
	Signatures []Signature
}

// Signature is the signature of an operator on the text of a file.
type Signature struct {
	Key   *ecdsa.PublicKey
	value []byte // ASN.1
}

// NewFile returns a file without signatures.
func NewFile(r Request) (File, error) {
	text, err := r.encode()
	return File{Text: text}, err
}

// ParseFile parses a file. It verifies no signature, and does not parse the request.
func ParseFile(content []byte) (File, error) {
	if len(content) > MaxFile {
		return File{}, fmt.Errorf("approval: the file has %d bytes; at most %d are allowed", len(content), MaxFile)
	}
	begin := bytes.Index(content, []byte("-----BEGIN "+signatureBlock))
	if begin < 0 {
		return File{Text: content}, nil
	}
	f, rest := File{Text: content[:begin]}, content[begin:]
	for len(bytes.TrimSpace(rest)) > 0 {
		if len(f.Signatures) == maxSignatures {
			return File{}, fmt.Errorf("approval: has more than %d signatures", maxSignatures)
		}
		var s Signature
		var err error
		if s, rest, err = parseSignature(rest); err != nil {
			return File{}, err
		}
		f.Signatures = append(f.Signatures, s)
	}
	return f, nil
}

// parseSignature returns the signature at the beginning of a text, and the rest of the text.
func parseSignature(text []byte) (s Signature, rest []byte, err error) {
	value, rest := pem.Decode(text)
	if value == nil || value.Type != signatureBlock || len(value.Headers) > 0 {
		return s, nil, fmt.Errorf("approval: expected a block %q", signatureBlock)
	}
	key, rest := pem.Decode(rest)
	if key == nil || key.Type != keyBlock || len(key.Headers) > 0 {
		return s, nil, fmt.Errorf("approval: expected a block %q after a signature", keyBlock)
	}
	parsed, err := x509.ParsePKIXPublicKey(key.Bytes)
	if err != nil {
		return s, nil, fmt.Errorf("approval: the key of a signature: %w", err)
	}
	public, ok := parsed.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return s, nil, errors.New("approval: the key of a signature is no ECDSA key on P-256")
	}
	return Signature{public, value.Bytes}, rest, nil
}

// Encode returns the content of the file.
func (f File) Encode() []byte {
	out := bytes.Clone(f.Text)
	for _, s := range f.Signatures {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: signatureBlock, Bytes: s.value})...)
		der, err := x509.MarshalPKIXPublicKey(s.Key)
		if err != nil {
			// parseSignature and Sign accept only keys on P-256
			panic(fmt.Sprintf("approval: a key that is not on P-256: %v", err))
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})...)
	}
	return out
}

// Request returns the request in the file. It verifies no signature.
func (f File) Request() (Request, error) {
	if len(f.Text) > MaxText {
		return Request{}, fmt.Errorf("approval: has %d bytes; at most %d are allowed", len(f.Text), MaxText)
	}
	return parseRequest(f.Text)
}

// Sign returns the file with a further signature. It fails if the key has signed the file already.
func (f File) Sign(key *ecdsa.PrivateKey) (File, error) {
	for _, s := range f.Signatures {
		if s.Key.Equal(key.Public()) {
			return File{}, errors.New("approval: this key has signed it already; another operator must sign it")
		}
	}
	if len(f.Signatures) == maxSignatures {
		return File{}, fmt.Errorf("approval: has %d signatures already", maxSignatures)
	}
	value, err := ecdsa.SignASN1(rand.Reader, key, digest(f.Text))
	if err != nil {
		return File{}, fmt.Errorf("approval: cannot sign: %w", err)
	}
	f.Signatures = append(f.Signatures[:len(f.Signatures):len(f.Signatures)], Signature{&key.PublicKey, value})
	return f, nil
}

// Fingerprint returns the fingerprint of the key of the signature.
func (s Signature) Fingerprint() string { return pki.KeyFingerprint(s.Key) }

// Signs reports whether the signature is valid for a text.
func (s Signature) Signs(text []byte) bool { return ecdsa.VerifyASN1(s.Key, digest(text), s.value) }

// digest returns the value that operators sign.
func digest(text []byte) []byte {
	inner := sha256.Sum256(text)
	sum := sha256.Sum256(append([]byte(purpose), inner[:]...))
	return sum[:]
}
