package credentials

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// KMS is the key manager of Secrets.
type KMS struct {
	*config.KMS        // nil: none
	SiteCAs     string // the CAs of the site, in PEM
}

// encryption returns the API server's EncryptionConfiguration: the first provider encrypts, and all
// decrypt. A key of the configuration encrypts Secrets with secretbox (XSalsa20-Poly1305) rather
// than AES-GCM: secretbox needs no rotation of a static key after 2^32 writes. The identity
// provider is last, so that unencrypted Secrets stay readable.
func encryption(keys []config.EncryptionKey, k KMS) []byte {
	providers := []string{secretbox(keys)}
	if k.KMS != nil {
		providers = append(providers, k.provider())
		if k.Encrypt {
			providers[0], providers[1] = providers[1], providers[0]
		}
	}
	return []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
` + strings.Join(providers, "") + `  - identity: {}
`)
}

func secretbox(keys []config.EncryptionKey) string {
	list := "  - secretbox:\n      keys:\n"
	for _, k := range keys {
		list += fmt.Sprintf("      - name: %q\n        secret: %s\n", k.Name(), k.Reveal())
	}
	return list
}

// provider returns the key manager as a provider. The provider's name is a prefix of the encrypted
// Secrets.
func (k KMS) provider() string {
	return fmt.Sprintf("  - kms:\n      apiVersion: v2\n      name: %s\n      endpoint: unix://%s\n      timeout: %s\n",
		k.Name(), filepath.Join(paths.KubeAPI, nodespec.KMSSocket), nodespec.KMSTimeout)
}

// file returns the content of nodespec.KMSFile; nil without a key manager.
func (k KMS) file() []byte {
	if k.KMS == nil {
		return nil
	}
	t := k.Transit
	out := nodespec.KMS{Endpoint: t.Endpoint.String(), CAs: t.CA.PEM() + k.SiteCAs, Namespace: t.Namespace, Mount: t.Mount, Key: t.Key}
	if r := t.AppRole; r != nil {
		out.AppRole = &nodespec.KMSAppRole{Mount: r.Mount, RoleID: r.RoleID, SecretID: r.SecretID.Reveal()}
	}
	if c := t.Certificate; c != nil {
		out.Certificate = &nodespec.KMSCertificate{Mount: c.Mount, Role: c.Role, Cert: c.Cert.PEM(), Key: c.Key.PEM()}
	}
	content, err := json.Marshal(out)
	if err != nil {
		panic(err) // the value contains only strings
	}
	return content
}
