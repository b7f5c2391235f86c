package config

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
)

// Redacted is printed in place of every secret.
const Redacted = "(redacted)"

// Secret is a text that must not reach a log, an API response or a terminal by accident. All
// printing and encoding functions print Redacted in its place. Only Reveal returns the text.
//
// The text is behind a pointer because package fmt does not call the methods of a Secret in an
// unexported field: it prints the raw value, which is only the address.
type Secret struct{ text *string }

// NewSecret returns a secret with a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal returns the text. Write it only to a file that only its user can read.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.text == nil }

// Equal compares two secrets in constant time.
func (s Secret) Equal(o Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1
}

// String returns Redacted; "" for an empty secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return Redacted
}

// Format prints String for every verb, including %#v and %x.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue returns String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns String, so that encoders of JSON and YAML do not print the secret. Only
// Marshal of this package prints the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText accepts any text except Redacted.
func (s *Secret) UnmarshalText(text []byte) error {
	if string(text) == Redacted {
		return errRedacted()
	}
	*s = NewSecret(string(text))
	return nil
}

func errRedacted() error {
	return &wrong{
		reason: "the secret is redacted in this file", expected: "the secret itself",
		hint: "use the file that was applied, not the response of the machine",
	}
}

// EncryptionKey is the key (secretbox: XSalsa20-Poly1305) that encrypts Secret objects in etcd: 32
// bytes in base64.
type EncryptionKey struct{ Secret }

// NewEncryptionKey returns the key with these bytes.
func NewEncryptionKey(key [32]byte) EncryptionKey {
	return EncryptionKey{NewSecret(base64.StdEncoding.EncodeToString(key[:]))}
}

// UnmarshalText parses 32 bytes in standard base64.
func (k *EncryptionKey) UnmarshalText(text []byte) error {
	if string(text) == Redacted {
		return errRedacted()
	}
	const want = "32 random bytes in base64 (44 characters)"
	key, err := base64.StdEncoding.Strict().DecodeString(string(text))
	switch {
	case err != nil:
		return &wrong{reason: "not base64", expected: want}
	case len(key) != 32:
		return &wrong{reason: fmt.Sprintf("%d bytes long", len(key)), expected: want}
	case [32]byte(key) == [32]byte{}:
		return &wrong{reason: "every byte is zero", expected: want}
	}
	*k = NewEncryptionKey([32]byte(key))
	return nil
}

// Name returns a name that identifies the key without revealing it. The name is stored with the
// data that the key encrypts, and keys are compared by name. The name is a part of a hash of the
// key, which does not help to guess 32 random bytes.
func (k EncryptionKey) Name() string {
	if k.IsZero() {
		return ""
	}
	sum := sha256.Sum256(append([]byte("orlop: the name of a key of Secrets\n"), k.Bytes()...))
	return hex.EncodeToString(sum[:4])
}

// Bytes returns the 32 bytes of the key; nil for the zero value.
func (k EncryptionKey) Bytes() []byte {
	key, err := base64.StdEncoding.DecodeString(k.Reveal())
	if err != nil || len(key) != 32 {
		// This happens only for the zero value: UnmarshalText and NewEncryptionKey accept only
		// valid keys.
		return nil
	}
	return key
}
