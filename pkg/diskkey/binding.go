package diskkey

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// Binding is the content of a file on an encrypted STATE. Only a machine that has opened this STATE
// can open DATA: the passphrase of DATA depends on the secret. So the TPM does not open DATA beside
// a STATE of an attacker, whatever the header of this STATE says.
type Binding struct {
	Version int    `json:"version"` // bindingVersion
	Secret  []byte `json:"secret"`  // random
	// Recipients are the public keys to which the machine encrypts the recovery key of a DATA that
	// it formats. The header of STATE has them, too, but each person with the disk can change it.
	Recipients []string `json:"recipients"`
}

const (
	bindingVersion = 1
	// secretSize is the size of Binding.Secret in bytes.
	secretSize = 32
	// MaxRecipients is the maximum number of public keys to which a recovery key is encrypted.
	MaxRecipients = 8
)

// NewBinding returns a binding with a random secret.
func NewBinding(recipients []string) Binding {
	secret := make([]byte, secretSize)
	rand.Read(secret) // never fails (crypto/rand)
	return Binding{Version: bindingVersion, Secret: secret, Recipients: recipients}
}

// ParseBinding parses the file of a binding.
func ParseBinding(text []byte) (b Binding, err error) {
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("binding of DATA: cannot parse: %w", err)
	}
	if b.Version != bindingVersion || len(b.Secret) != secretSize || len(b.Recipients) == 0 || len(b.Recipients) > MaxRecipients {
		return b, errors.New("binding of DATA: has another version, or no secret or recipients")
	}
	return b, nil
}

// bindingDigest returns the SHA-256 of the secret of a binding, in hexadecimal; empty without a
// secret. The recovery key of DATA has the digest, so an attacker cannot change it.
func bindingDigest(secret []byte) string {
	if len(secret) == 0 {
		return ""
	}
	sum := sha256.Sum256(secret)
	return hex.EncodeToString(sum[:])
}

// Present is the present STATE, to which Recover binds DATA.
type Present struct {
	Binding
	// New is true if the operator says that STATE is a new one. Otherwise it must be the STATE in
	// the recovery key of DATA: an attacker can make another one that looks the same.
	New bool
	// Store stores the binding on STATE; nil if STATE has it.
	Store func() error
}

// ErrOtherState means that DATA is bound to a STATE other than the present one.
var ErrOtherState = errors.New("the recovery key names another STATE; the present one can be that of an attacker, who could then read DATA; if you yourself have erased STATE, use `orlopctl disk recover --new-state` (task 136 of the runbook)")

// bindTo binds DATA to the present STATE. For another STATE, it encrypts the recovery key again,
// with the digest of this STATE.
func (v *Recovering) bindTo(state Present) (err error) {
	if v.Label == layout.State {
		return nil
	}
	v.Secret = state.Secret
	digest := bindingDigest(state.Secret)
	switch {
	case digest == v.Bound:
		return nil
	case !state.New:
		return fmt.Errorf("%s: cannot bind %s to STATE: %w", v.Device, v.Label, ErrOtherState)
	}
	content := RecoveryContent{Label: v.Label, UUID: v.UUID, Key: v.Key, Binding: digest}
	if v.Recovery, err = EncryptRecovery(content, state.Recipients); err != nil {
		err = fmt.Errorf("%s: cannot bind %s to STATE: %w", v.Device, v.Label, err)
	}
	return err
}

// ErrBinding means that DATA cannot be opened without the secret of its STATE.
var ErrBinding = errors.New("the secret that binds it to its STATE is missing")

// passphrase derives the passphrase of the key slot of an unlock key: HKDF-SHA256 (RFC 5869) of the
// unlock key, with the secret of the binding as salt, and the info "orlop disk 1 " and the label.
// STATE has no salt. The label prevents that a volume opens in the place of the other one.
func (v Volume) passphrase(key []byte) ([]byte, error) {
	switch {
	case v.Label == layout.State && len(v.Secret) == 0, v.Label != layout.State && len(v.Secret) == secretSize:
		return hkdf.Key(sha256.New, key, v.Secret, "orlop disk 1 "+v.Label, KeySize)
	}
	return nil, fmt.Errorf("%s: cannot open %s: %w", v.Device, v.Label, ErrBinding)
}
