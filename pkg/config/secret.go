package config

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
)

// Redacted is printed in the place of every secret.
const Redacted = "(redacted)"

// Secret is a text that must not reach a log, an API answer or a terminal by accident: every way of
// printing it gives Redacted. Only Reveal gives the text.
//
// The text stands behind a pointer because package fmt, when a Secret hides in an unexported field,
// calls no method but prints what it finds; it then finds an address.
type Secret struct{ text *string }

// NewSecret makes a secret of a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal gives the text. Write it to a file of its user, nowhere else.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero says that there is no secret.
func (s Secret) IsZero() bool { return s.text == nil }

// Equal compares two secrets in constant time.
func (s Secret) Equal(o Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1
}

// String is Redacted, or nothing when there is no secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return Redacted
}

// Format prints String for every verb, also %#v and %x.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue is String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String, so that JSON and YAML encoders print no secret either. Marshal of this
// package does.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the text as it is.
func (s *Secret) UnmarshalText(text []byte) error {
	if string(text) == Redacted {
		return errRedacted()
	}
	*s = NewSecret(string(text))
	return nil
}

func errRedacted() error {
	return &wrong{
		reason: "the secret was taken out of this file", expected: "the secret itself",
		hint: "take the file that the configuration was applied from, not the answer of the machine",
	}
}

// EncryptionKey is the key (secretbox: XSalsa20-Poly1305) for Secret objects at rest: 32 bytes,
// written in base64.
type EncryptionKey struct{ Secret }

// NewEncryptionKey makes the key of its bytes.
func NewEncryptionKey(key [32]byte) EncryptionKey {
	return EncryptionKey{NewSecret(base64.StdEncoding.EncodeToString(key[:]))}
}

// UnmarshalText reads 32 bytes in standard base64.
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

// Name is what the key is called where it cannot be shown: beside what it has sealed, and where
// keys are compared. It is made of the key, of which it tells nothing that helps to guess 32 random
// bytes.
func (k EncryptionKey) Name() string {
	if k.IsZero() {
		return ""
	}
	sum := sha256.Sum256(append([]byte("orlop: the name of a key of Secrets\n"), k.Bytes()...))
	return hex.EncodeToString(sum[:4])
}

// Bytes are the 32 bytes of the key; nil when there is none.
func (k EncryptionKey) Bytes() []byte {
	key, err := base64.StdEncoding.DecodeString(k.Reveal())
	if err != nil || len(key) != 32 {
		// only the zero value comes here: UnmarshalText and NewEncryptionKey let nothing else in
		return nil
	}
	return key
}
