package bundle

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Key is an Ed25519 key that signs bundles.
type Key struct{ private ed25519.PrivateKey }

// NewKey generates a key.
func NewKey() (Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	return Key{private}, err
}

// ParseKey parses a private key in PEM (PKCS #8).
func ParseKey(text []byte) (Key, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return Key{}, errors.New("no PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return Key{}, err
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return Key{}, fmt.Errorf("it is a %T, not an Ed25519 key", parsed)
	}
	return Key{private}, nil
}

// PrivatePEM returns the private key, which must stay secret.
func (k Key) PrivatePEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// PublicPEM returns the public key, for the machines.
func (k Key) PublicPEM() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.private.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// Trust is a list of distinct trusted keys, and the number of them that must have signed.
type Trust struct {
	Keys      []ed25519.PublicKey
	Threshold int
}

// WithThreshold returns the same keys with another threshold, from 1 to the number of keys.
func (t Trust) WithThreshold(threshold int) (Trust, error) {
	if threshold < 1 || threshold > len(t.Keys) {
		return t, fmt.Errorf("%d required signatures with %d keys: 1 to %[2]d expected", threshold, len(t.Keys))
	}
	t.Threshold = threshold
	return t, nil
}

// ParseTrust parses concatenated public keys in PEM. The threshold is 1; WithThreshold changes it.
func ParseTrust(text []byte) (Trust, error) {
	all := Trust{Threshold: 1}
	for len(text) > 0 {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return Trust{}, err
		}
		public, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return Trust{}, fmt.Errorf("a %T is not an Ed25519 key", parsed)
		}
		if !slices.ContainsFunc(all.Keys, func(k ed25519.PublicKey) bool { return k.Equal(public) }) {
			all.Keys = append(all.Keys, public)
		}
	}
	if len(all.Keys) == 0 {
		return Trust{}, errors.New("no public key")
	}
	return all, nil
}

// dsseKey implements the key interfaces of the DSSE library.
type dsseKey struct {
	public  ed25519.PublicKey
	private ed25519.PrivateKey // nil for a key that cannot sign
}

func (s dsseKey) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.private, data), nil
}

func (s dsseKey) Verify(_ context.Context, data, signature []byte) error {
	if !ed25519.Verify(s.public, data, signature) {
		return errors.New("wrong signature")
	}
	return nil
}

func (s dsseKey) KeyID() (string, error) { return dsse.SHA256KeyID(s.public) }

func (s dsseKey) Public() crypto.PublicKey { return s.public }

func (k Key) dsse() dsseKey {
	public, _ := k.private.Public().(ed25519.PublicKey) // ed25519 keys always have this type
	return dsseKey{public, k.private}
}
