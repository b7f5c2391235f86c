package gen

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// Secrets is the content of the file that `gen secrets` writes and `gen config` reads: the secret
// values that all machines of a cluster share. Certificates and keys are in PEM.
type Secrets struct {
	Kubernetes           Pair   `json:"kubernetes"`
	Etcd                 Pair   `json:"etcd"`
	FrontProxy           Pair   `json:"frontProxy"`
	Machine              Pair   `json:"machine"`
	Client               Pair   `json:"client"`
	ServiceAccountKey    string `json:"serviceAccountKey"`
	SecretsEncryptionKey []byte `json:"secretsEncryptionKey"` // 32 bytes; base64 in the file
	// NextEncryptionKey will replace SecretsEncryptionKey during a rotation (orlopctl/rotation).
	// FormerEncryptionKeys are replaced keys, which old backups still need.
	NextEncryptionKey    []byte   `json:"nextEncryptionKey,omitempty"`
	FormerEncryptionKeys [][]byte `json:"formerEncryptionKeys,omitempty"`
	read                 []byte   // last content of the file; nil for a new file
	// Next has the CAs that will replace the CAs above during a rotation (orlopctl/rotation). The
	// key of the map is the JSON name of the replaced field.
	Next map[string]Pair `json:"next,omitempty"`
}

// Pair is a certificate and its key, in PEM.
type Pair struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// NewClientCA replaces the client CA by a new CA.
func (s *Secrets) NewClientCA() error {
	made, err := pki.NewCA("orlop clients", ClusterCATTL)
	if err == nil {
		s.Client = Pair{Cert: string(made.CertPEM()), Key: string(made.KeyPEM())}
	}
	return err
}

// NewSecrets makes the CAs and keys of a new cluster.
func NewSecrets() (*Secrets, error) {
	s := &Secrets{SecretsEncryptionKey: make([]byte, 32)}
	for _, ca := range []struct {
		name string
		to   *Pair
	}{{"kubernetes", &s.Kubernetes}, {"etcd", &s.Etcd}, {"kubernetes front proxy", &s.FrontProxy}, {"orlop machines", &s.Machine}} {
		made, err := pki.NewCA(ca.name, ClusterCATTL)
		if err != nil {
			return nil, err
		}
		*ca.to = Pair{Cert: string(made.CertPEM()), Key: string(made.KeyPEM())}
	}
	if err := s.NewClientCA(); err != nil {
		return nil, err
	}
	private, _, err := pki.NewServiceAccountKey()
	if err != nil {
		return nil, err
	}
	s.ServiceAccountKey = string(private)
	if _, err := rand.Read(s.SecretsEncryptionKey); err != nil {
		return nil, fmt.Errorf("secrets: cannot draw a key: %w", err)
	}
	return s, nil
}

// Write writes the file. Without force it returns an error if the file exists. It also returns an
// error if the content of the file has changed since it was read.
func (s *Secrets) Write(path string, force bool) error {
	text, err := yaml.Marshal(s)
	if err != nil {
		return fmt.Errorf("secrets: cannot format: %w", err)
	}
	// Another command may have written the only copy of a key to the file meanwhile.
	if s.read != nil {
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, s.read) {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("secrets: %s was changed meanwhile, or is gone; it was not written", path), Hint: "call it again when no other command works with the file"}
		}
	}
	if err := secretfile.Write(path, text, force); err != nil {
		return err
	}
	s.read = text
	return nil
}

// ReadSecrets reads the file of a cluster's secrets.
func ReadSecrets(path string) (*Secrets, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("secrets: cannot read: %w", err), Hint: "`orlopctl gen secrets` makes the file"}
	}
	s := &Secrets{read: text}
	if err := strictyaml.Decode(text, s); err != nil {
		return nil, exit.Usagef("secrets: cannot use %s: %w", path, err)
	}
	return s, nil
}

// acceptedKeys returns the encryption keys that the cluster accepts beside the current key.
func (s *Secrets) acceptedKeys() []config.EncryptionKey {
	if len(s.NextEncryptionKey) != 32 {
		return nil
	}
	return []config.EncryptionKey{config.NewEncryptionKey([32]byte(s.NextEncryptionKey))}
}

// UnfinishedRotations describes each unfinished rotation in the file. A configuration that is made
// from the file has the keys from before these rotations.
func (s *Secrets) UnfinishedRotations() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Next)) {
		all = append(all, "the CA "+name+" is being replaced (`orlopctl trust rotate-ca "+name+"`)")
	}
	if len(s.NextEncryptionKey) > 0 {
		all = append(all, "the key of Secrets is being replaced (`orlopctl trust rotate-key`)")
	}
	return all
}

// PKI returns the CAs and the encryption key in the form of the Cluster document.
func (s *Secrets) PKI() (config.PKI, config.EncryptionKey, error) {
	var out config.PKI
	for _, ca := range []struct {
		name     string
		from     Pair
		to       *config.CertKey
		accepted *[]config.Certificate
	}{
		{"kubernetes", s.Kubernetes, &out.Kubernetes, &out.Accepted.Kubernetes}, {"etcd", s.Etcd, &out.Etcd, &out.Accepted.Etcd},
		{"frontProxy", s.FrontProxy, &out.FrontProxy, &out.Accepted.FrontProxy}, {"machine", s.Machine, &out.Machine, &out.Accepted.Machine},
		{"client", s.Client, &out.Client, &out.Accepted.Client},
	} {
		if ca.name == "client" && ca.from == (Pair{}) {
			continue // without a client CA, machines issue no certificates
		}
		made, err := config.NewCertKey(ca.from.Cert, ca.from.Key)
		if err != nil {
			return out, config.EncryptionKey{}, exit.Usagef("secrets: cannot use %s: %w", ca.name, err)
		}
		*ca.to = made
		if next, begun := s.Next[ca.name]; begun {
			cert, err := config.ParseCertificate(next.Cert)
			if err != nil {
				return out, config.EncryptionKey{}, exit.Usagef("secrets: cannot use next.%s: %w", ca.name, err)
			}
			*ca.accepted = []config.Certificate{cert}
		}
	}
	key, err := config.ParsePrivateKey(s.ServiceAccountKey)
	if err != nil {
		return out, config.EncryptionKey{}, exit.Usagef("secrets: cannot use serviceAccountKey: %w", err)
	}
	out.ServiceAccountKey = key
	if len(s.SecretsEncryptionKey) != 32 {
		return out, config.EncryptionKey{}, exit.Usagef("secrets: cannot use secretsEncryptionKey: it has %d bytes, expected 32", len(s.SecretsEncryptionKey))
	}
	return out, config.NewEncryptionKey([32]byte(s.SecretsEncryptionKey)), nil
}

// Authority returns the CA for a field of Cluster.spec.pki. It returns nil for an unknown field.
func (s *Secrets) Authority(field string) *Pair {
	return map[string]*Pair{"client": &s.Client, "machine": &s.Machine, "kubernetes": &s.Kubernetes, "frontProxy": &s.FrontProxy, "etcd": &s.Etcd}[field]
}

// HasMachineCA reports whether a PEM text contains the machine CA of these secrets, or the next
// machine CA.
func (s *Secrets) HasMachineCA(pem string) bool {
	return pki.HaveCommonCert(pem, s.Machine.Cert+s.Next["machine"].Cert)
}
