package config

import (
	"crypto/ed25519"
	"fmt"
	"slices"
)

// Extensions are the signed images that add modules, firmware, programs and services to the system
// (docs/decisions/0105-extensions.md).
type Extensions struct {
	Images []Artifact   `yaml:"images,omitempty"`
	Keys   []SigningKey `yaml:"keys,omitempty"`
}

// Limits of Extensions.
const (
	maxExtensions    = 16
	maxExtensionKeys = 8
)

// SigningKey is an Ed25519 public key. Its text format is PEM.
type SigningKey struct{ text string }

const wantSigningKey = "one Ed25519 public key in PEM (-----BEGIN PUBLIC KEY-----), such as keys.pem of `imager keys`"

// UnmarshalText parses exactly one key.
func (k *SigningKey) UnmarshalText(text []byte) error {
	canonical, parsed, err := publicKey(string(text), wantSigningKey)
	if err != nil {
		return err
	}
	if _, ok := parsed.(ed25519.PublicKey); !ok {
		return &wrong{reason: fmt.Sprintf("it is a %T", parsed), expected: wantSigningKey}
	}
	k.text = canonical
	return nil
}

// MarshalText returns PEM.
func (k SigningKey) MarshalText() ([]byte, error) { return []byte(k.text), nil }

// PEM returns the key in PEM; "" for the zero value.
func (k SigningKey) PEM() string { return k.text }

// IsZero reports whether there is no key.
func (k SigningKey) IsZero() bool { return k.text == "" }

// String returns the first half of the SHA-256 of the key.
func (k SigningKey) String() string { return keyName("Ed25519 key", k.text) }

func (v machineValidator) extensions(path string, e Extensions) {
	if len(e.Images) > maxExtensions {
		v.on(path+".images", wrong{reason: fmt.Sprintf("%d images", len(e.Images)), expected: fmt.Sprintf("at most %d", maxExtensions)})
	}
	if len(e.Keys) > maxExtensionKeys {
		v.on(path+".keys", wrong{reason: fmt.Sprintf("%d keys", len(e.Keys)), expected: fmt.Sprintf("at most %d", maxExtensionKeys)})
	}
	for i, image := range e.Images {
		if image != (Artifact{}) && slices.ContainsFunc(e.Images[:i], func(o Artifact) bool { return o.SHA256 == image.SHA256 }) {
			v.on(fmt.Sprintf("%s.images[%d]", path, i), wrong{reason: "the same digest is given twice", expected: "each once"})
		}
	}
	for i, k := range e.Keys {
		if !k.IsZero() && slices.Contains(e.Keys[:i], k) {
			v.on(fmt.Sprintf("%s.keys[%d]", path, i), wrong{reason: "the same key is given twice", expected: "each once"})
		}
	}
}
