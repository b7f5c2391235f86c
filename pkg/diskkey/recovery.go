package diskkey

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/sanitize"
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

// RecoveryContent is what the machine encrypts to the operator. The label and the UUID say which
// volume the key opens. So an attacker cannot pass the ciphertext of another machine off as that of
// this volume without the operator seeing it.
type RecoveryContent struct {
	Label string      `json:"label"`
	UUID  uuid.UUID   `json:"uuid"` // of the LUKS2 header
	Key   RecoveryKey `json:"key"`
	// Binding is the SHA-256 of the secret of the STATE to which DATA is bound, in hexadecimal;
	// empty for STATE. An attacker that makes another STATE does not know the recovery key of DATA,
	// and so cannot make this ciphertext with another digest.
	Binding string `json:"binding,omitempty"`
}

// Recovery is a RecoveryContent, encrypted to the operator with age. The machine cannot decrypt it.
type Recovery struct {
	Recipients []string `json:"recipients"` // public keys
	Ciphertext string   `json:"ciphertext"` // armored
}

// maxCiphertext is the maximum size of a ciphertext in bytes. A recipient of the type that is
// secure against quantum computers needs 2 KiB.
const maxCiphertext = 32 << 10

// EncryptRecovery encrypts the content to public keys of age.
func EncryptRecovery(c RecoveryContent, recipients []string) (Recovery, error) {
	r := Recovery{Recipients: recipients}
	if len(recipients) > MaxRecipients {
		return r, fmt.Errorf("recovery key: has %d recipients, and at most %d are possible", len(recipients), MaxRecipients)
	}
	parsed, err := age.ParseRecipients(strings.NewReader(strings.Join(recipients, "\n")))
	if err != nil {
		return r, fmt.Errorf("recovery key: %w", err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	defer clear(text)
	var out bytes.Buffer
	armored := armor.NewWriter(&out)
	w, err := age.Encrypt(armored, parsed...)
	if err != nil {
		return r, fmt.Errorf("recovery key: cannot encrypt: %w", err)
	}
	_, err = w.Write(text)
	if err = errors.Join(err, w.Close(), armored.Close()); err != nil {
		return r, fmt.Errorf("recovery key: cannot encrypt: %w", err)
	}
	r.Ciphertext = out.String()
	return r, nil
}

// Decrypt decrypts the content with the private keys of the operator. It fails if the content is
// not that of an encrypted partition: the machine can send any ciphertext of the operator.
func (r Recovery) Decrypt(identities ...age.Identity) (c RecoveryContent, err error) {
	if len(r.Ciphertext) > maxCiphertext {
		return c, fmt.Errorf("recovery key: the ciphertext has %d bytes, and at most %d are possible", len(r.Ciphertext), maxCiphertext)
	}
	plain, err := age.Decrypt(armor.NewReader(strings.NewReader(r.Ciphertext)), identities...)
	if err != nil {
		return c, fmt.Errorf("recovery key: cannot decrypt; it is encrypted to %s: %w", strings.Join(r.Recipients, ", "), err)
	}
	d := json.NewDecoder(io.LimitReader(plain, 1<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return RecoveryContent{}, errors.New("recovery key: the machine has sent something else than a recovery key")
	}
	if c.Label == "" || c.UUID == uuid.Nil {
		return RecoveryContent{}, errors.New("recovery key: it names no volume")
	}
	c.Label, c.Binding = sanitize.ASCII(c.Label, maxLabel), sanitize.ASCII(c.Binding, 2*sha256.Size)
	c.Key, err = ParseRecoveryKey(string(c.Key))
	return c, err
}
