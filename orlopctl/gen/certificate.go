package gen

import (
	"fmt"
	"os"

	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/pki"
)

// NewRequest returns a new key in a Leaf without a certificate, and a CSR (PKCS #10) for the key.
func NewRequest() (*pki.Leaf, []byte, error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	request, err := pki.NewRequest(key)
	return &pki.Leaf{Key: key}, request, err
}

// WritePair replaces a certificate and its key. It writes both to temporary files before it
// replaces the first file.
func WritePair(certFile, keyFile string, leaf *pki.Leaf) error {
	const next = ".next"
	if err := secretfile.Write(keyFile+next, leaf.KeyPEM(), true); err != nil {
		return err
	}
	if err := secretfile.Write(certFile+next, leaf.CertPEM(), true); err != nil {
		return err
	}
	for _, name := range []string{keyFile, certFile} {
		if err := os.Rename(name+next, name); err != nil {
			return fmt.Errorf("%s: cannot replace: %w", name, err)
		}
	}
	return nil
}
