package secureboot

import (
	"bytes"
	"crypto"
	"fmt"

	"github.com/foxboron/go-uefi/authenticode"

	"github.com/orlop-os/orlop/pkg/secureboot"
)

// Sign returns a PE image with a signature. It rejects an image that already has a signature,
// because the result of the build would depend on the old signature.
func (s Signer) Sign(image []byte) ([]byte, error) {
	before, err := secureboot.ParseImage(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, err
	}
	if len(before.Signatures) > 0 {
		return nil, fmt.Errorf("the image has %d signatures already", len(before.Signatures))
	}
	pe, err := authenticode.Parse(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	content, err := authenticode.CreateSpcIndirectDataContent(pe.Hash(crypto.SHA256), crypto.SHA256)
	if err != nil {
		return nil, err
	}
	signature, err := s.signImage(content, authenticode.OIDSpcIndirectDataContent)
	if err != nil {
		return nil, err
	}
	if err := pe.AppendSignature(signature); err != nil {
		return nil, err
	}
	out := pe.Bytes()
	// Machines check upgrades with pkg/secureboot and not with the library. Both must compute the
	// same digest.
	db := List(s.Certificate.Raw, secureboot.GUID{})
	if err := secureboot.Accept(bytes.NewReader(out), int64(len(out)), db, nil); err != nil {
		return nil, fmt.Errorf("the signed image would not start: %w", err)
	}
	return out, nil
}
