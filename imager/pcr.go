package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/imager/boot"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The section .pcrsig of a boot image has a signature over the value of PCR 11 after a boot of the
// image. The section .pcrpkey has the public key. The TPM of a machine releases the keys of its
// disks to each boot image with such a signature (0127). The key is the key of Secure Boot, so
// that a site has one key to protect: its owner can open the disks of the site.

// pcrKey returns the key that signs the values of PCR 11; nil if the build has no key for Secure
// Boot, or if a TPM might not verify signatures of the key (diskkey.ParseSigner).
func (b *Build) pcrKey() *rsa.PublicKey {
	if b.signer == nil {
		return nil
	}
	key, ok := b.signer.Certificate.PublicKey.(*rsa.PublicKey)
	if !ok || key.Size() != 256 {
		return nil
	}
	return key
}

// checkRecipients checks the recipients of the recovery keys: public keys of age, at most
// diskkey.MaxRecipients.
func (p *Profile) checkRecipients() error {
	if len(p.Disk.Recipients) == 0 {
		return nil
	}
	if p.SecureBoot == nil {
		return errors.New("disk.recipients: secureBoot is missing: without its key, no TPM releases a key to this version")
	}
	if _, err := diskkey.EncryptRecovery(diskkey.RecoveryContent{}, p.Disk.Recipients); err != nil {
		return fmt.Errorf("disk.recipients: %w", err)
	}
	return nil
}

// addPCRKey adds the public key, and the recipients of the recovery keys, to the root.
func (b *Build) addPCRKey() error {
	key := b.pcrKey()
	if key == nil && len(b.Profile.Disk.Recipients) > 0 {
		return errors.New("disk.recipients: the certificate of secureBoot has no RSA key of 2048 bits, which every TPM verifies")
	}
	if key == nil {
		return nil
	}
	if list := b.Profile.Disk.Recipients; len(list) > 0 {
		if err := b.tree.Add(paths.DiskRecipients, Node{Mode: 0o644, Data: []byte(strings.Join(list, "\n") + "\n"), From: part}); err != nil {
			return err
		}
	}
	text, err := diskkey.MarshalSigner(key)
	if err != nil {
		return err
	}
	return b.tree.Add(paths.PCRKey, Node{Mode: 0o644, Data: text, From: part})
}

// signPCR returns the sections of a boot image, and the two sections for PCR 11 before them.
func (b *Build) signPCR(sections []boot.Section) ([]boot.Section, error) {
	key := b.pcrKey()
	if key == nil {
		return sections, nil
	}
	public, err := diskkey.MarshalSigner(key)
	if err != nil {
		return nil, err
	}
	sections = append([]boot.Section{{Name: ".pcrpkey", Content: public}}, sections...)
	// The stub measures its own section .sbat, too. So the value follows from the whole image. It
	// does not measure .pcrsig.
	image, err := boot.UKI(b.pieces.stub, sections)
	if err != nil {
		return nil, err
	}
	r, err := attest.ReadImage(b.Release.Version, b.params.String(), image)
	if err != nil {
		return nil, err
	}
	signature, err := diskkey.SignImage(r.ImagePCR(), key, func(sum []byte) ([]byte, error) {
		return b.signer.Key.Sign(rand.Reader, sum, crypto.SHA256)
	})
	if err != nil {
		return nil, err
	}
	return append([]boot.Section{{Name: ".pcrsig", Content: signature}}, sections...), nil
}
