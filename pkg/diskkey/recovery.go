package diskkey

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
)

// RecoveryKey is the text that opens key slot 1 of a partition: 256 random bits in base32, lower
// case, in groups of four characters with dashes. The text itself is the passphrase, so any system
// with cryptsetup opens the partition with it.
type RecoveryKey string

const (
	recoveryBytes = 32
	recoveryChars = 52 // 256 bits in base32 without padding
	groupSize     = 4
)

var base = base32.StdEncoding.WithPadding(base32.NoPadding)

// NewRecoveryKey returns a random recovery key.
func NewRecoveryKey() RecoveryKey {
	raw := make([]byte, recoveryBytes)
	rand.Read(raw) // never fails (crypto/rand)
	return group(strings.ToLower(base.EncodeToString(raw)))
}

func group(text string) RecoveryKey {
	var groups []string
	for ; len(text) > groupSize; text = text[groupSize:] {
		groups = append(groups, text[:groupSize])
	}
	return RecoveryKey(strings.Join(append(groups, text), "-"))
}

// ParseRecoveryKey parses a recovery key that a person may have typed: upper case, spaces and
// missing dashes are accepted. Its error does not contain the text.
func ParseRecoveryKey(text string) (RecoveryKey, error) {
	compact := strings.ToLower(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '-' || r == ' ' || r == '\n' || r == '\r' || r == '\t' }), ""))
	if len(compact) != recoveryChars {
		return "", fmt.Errorf("recovery key: has %d characters without dashes, and a recovery key has %d", len(compact), recoveryChars)
	}
	if _, err := base.DecodeString(strings.ToUpper(compact)); err != nil {
		return "", errors.New("recovery key: has a character that no recovery key has: letters a to z and digits 2 to 7 expected")
	}
	return group(compact), nil
}

// Recovery is a recovery key, encrypted to the operator with age. The machine cannot decrypt it.
type Recovery struct {
	Recipients []string `json:"recipients"` // public keys
	Ciphertext string   `json:"ciphertext"` // armored
}

// maxCiphertext is the maximum size of a ciphertext in bytes. A recipient of the type that is
// secure against quantum computers needs 2 KiB.
const maxCiphertext = 32 << 10

// EncryptRecovery encrypts a recovery key to public keys of age.
func EncryptRecovery(k RecoveryKey, recipients []string) (Recovery, error) {
	r := Recovery{Recipients: recipients}
	parsed, err := age.ParseRecipients(strings.NewReader(strings.Join(recipients, "\n")))
	if err != nil {
		return r, fmt.Errorf("recovery key: %w", err)
	}
	var out bytes.Buffer
	armored := armor.NewWriter(&out)
	w, err := age.Encrypt(armored, parsed...)
	if err != nil {
		return r, fmt.Errorf("recovery key: cannot encrypt: %w", err)
	}
	_, err = io.WriteString(w, string(k))
	if err = errors.Join(err, w.Close(), armored.Close()); err != nil {
		return r, fmt.Errorf("recovery key: cannot encrypt: %w", err)
	}
	r.Ciphertext = out.String()
	return r, nil
}

// Decrypt decrypts the recovery key with the private keys of the operator.
func (r Recovery) Decrypt(identities ...age.Identity) (RecoveryKey, error) {
	if len(r.Ciphertext) > maxCiphertext {
		return "", fmt.Errorf("recovery key: the ciphertext has %d bytes, and at most %d are possible", len(r.Ciphertext), maxCiphertext)
	}
	plain, err := age.Decrypt(armor.NewReader(strings.NewReader(r.Ciphertext)), identities...)
	if err != nil {
		return "", fmt.Errorf("recovery key: cannot decrypt; it is encrypted to %s: %w", strings.Join(r.Recipients, ", "), err)
	}
	text, err := io.ReadAll(io.LimitReader(plain, 1<<10))
	if err != nil {
		return "", fmt.Errorf("recovery key: cannot decrypt: %w", err)
	}
	return ParseRecoveryKey(string(text))
}
