package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	year = 365 * 24 * time.Hour
	// operatorCALife is long because the CA is part of the image.
	operatorCALife = 20 * year
	clusterCALife  = 10 * year
	// clientLife is short to limit the damage of a stolen certificate. An operator with the CA key
	// makes another certificate in a second; for other operators a machine renews the certificate
	// (trust.go).
	clientLife = 24 * time.Hour
	// clientBackdate makes a client certificate valid on a machine whose clock shows the build time
	// of its image.
	clientBackdate = 2 * year
)

// The files in an operator's directory.
const (
	operatorCert = "ca.crt"
	operatorKey  = "ca.key"
	adminName    = "admin"
)

func genCommand(ios *iostreams.Streams) *cobra.Command {
	c := &cobra.Command{Use: "gen", Short: "Generate keys and configurations"}
	c.AddCommand(genOperatorCommand(ios), genClientCommand(ios), genSecretsCommand(ios), genConfigCommand(ios))
	return c
}

func genOperatorCommand(ios *iostreams.Streams) *cobra.Command {
	var name, out string
	var force bool
	c := &cobra.Command{
		Use:   "operator",
		Short: "Make an operator's CA and the first client certificate (ca.crt, ca.key, admin.crt, admin.key)",
		Long: "Make an operator's CA and the first client certificate, with the role admin.\n\n" +
			"An image that is built with ca.crt accepts only calls of this operator. Store ca.key offline: it is needed only\nfor more client certificates (`orlopctl gen client`). The first certificate is valid for 24 hours; machines with a\nconfiguration renew it (`orlopctl trust`).",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := makeOperator(out, name, force); err != nil {
				return err
			}
			ios.Println("wrote the operator's CA and the certificate of " + adminName + " to " + out)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "operator", "directory for the files")
	c.Flags().StringVar(&name, "name", "orlop operator", "name of the CA")
	c.Flags().BoolVar(&force, "force", false, "replace existing files")
	return c
}

// makeOperator creates the files in an operator's directory.
func makeOperator(dir, name string, force bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("operator: cannot create the directory: %w", err)
	}
	ca, err := pki.NewCA(name, operatorCALife)
	if err != nil {
		return err
	}
	admin, err := issueClient(ca, adminName, []string{pki.RoleAdmin}, clientLife)
	if err != nil {
		return err
	}
	// All files in one step: ca.key may be stored elsewhere, and in that case the other files must
	// not be replaced either.
	return secretfile.WriteAll(append([]secretfile.File{
		{Path: filepath.Join(dir, operatorKey), Content: ca.KeyPEM()}, {Path: filepath.Join(dir, operatorCert), Content: ca.CertPEM()},
	}, leafFiles(dir, adminName, admin)...), force)
}

func genClientCommand(ios *iostreams.Streams) *cobra.Command {
	var operator, name, role, out string
	var ttl time.Duration
	var force bool
	c := &cobra.Command{
		Use:   "client",
		Short: "Make another client certificate, signed by the operator's CA",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !slices.Contains(pki.Roles(), role) {
				return exit.Usagef("--role %s: cannot use: expected %s", role, roleNames())
			}
			if name == "" {
				return exit.Usagef("--name: cannot make a certificate: expected the name of the client")
			}
			if name == "ca" || filepath.Base(name) != name || name == ".." {
				return exit.Usagef("--name %s: cannot make a certificate: expected a name for the files NAME.crt and NAME.key, but not ca, whose key would be overwritten", name)
			}
			ca, err := readOperator(operator)
			if err != nil {
				return err
			}
			if out == "" {
				out = operator
			}
			if err := makeClient(ca, out, name, pki.RolePrefix+role, ttl, force); err != nil {
				return err
			}
			ios.Printf("wrote %s.crt and %s.key to %s\n", name, name, out)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&operator, "operator", "", "directory with the operator's ca.crt and ca.key")
	f.StringVar(&name, "name", "", "name of the client; it is in the audit log")
	f.StringVar(&role, "role", "reader", roleNames())
	f.StringVar(&out, "out", "", "directory for the files (default: the operator's)")
	f.DurationVar(&ttl, "ttl", clientLife, "how long the certificate is valid")
	f.BoolVar(&force, "force", false, "replace existing files")
	must(c.MarkFlagRequired("operator"))
	return c
}

// roleNames returns "reader, operator, admin, …".
func roleNames() string { return strings.Join(pki.Roles(), ", ") }

// must panics on an error that only a bug in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func readOperator(dir string) (*pki.CA, error) {
	cert, err := os.ReadFile(filepath.Join(dir, operatorCert))
	if err != nil {
		return nil, exit.Usagef("operator: cannot read the CA: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, operatorKey))
	if err != nil {
		return nil, exit.Usagef("operator: cannot read the CA's key: %w", err)
	}
	return pki.ParseCA(cert, key)
}

// issueClient issues a client certificate by an operator CA.
func issueClient(ca *pki.CA, name string, organisations []string, ttl time.Duration) (*pki.Leaf, error) {
	return ca.Issue(pki.Spec{CN: name, O: organisations, Usage: pki.Client, TTL: ttl, Backdate: clientBackdate})
}

func makeClient(ca *pki.CA, dir, name, organisation string, ttl time.Duration, force bool) error {
	leaf, err := issueClient(ca, name, []string{organisation}, ttl)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory: cannot create: %w", err)
	}
	return secretfile.WriteAll(leafFiles(dir, name, leaf), force)
}

// leafFiles returns the files of a client certificate and its key.
func leafFiles(dir, name string, leaf *pki.Leaf) []secretfile.File {
	return []secretfile.File{{Path: filepath.Join(dir, name+".key"), Content: leaf.KeyPEM()}, {Path: filepath.Join(dir, name+".crt"), Content: leaf.CertPEM()}}
}

// secrets is the file that `gen secrets` writes and `gen config` reads: the values that all
// machines of a cluster share and that are secret to all others. Certificates and keys are PEM.
type secrets struct {
	Kubernetes           certKey `json:"kubernetes"`
	Etcd                 certKey `json:"etcd"`
	FrontProxy           certKey `json:"frontProxy"`
	Machine              certKey `json:"machine"`
	Client               certKey `json:"client"`
	ServiceAccountKey    string  `json:"serviceAccountKey"`
	SecretsEncryptionKey []byte  `json:"secretsEncryptionKey"` // 32 bytes; base64 in the file
	// NextEncryptionKey will replace SecretsEncryptionKey. FormerEncryptionKeys are replaced keys
	// that old backups still need (rotate_key.go).
	NextEncryptionKey    []byte   `json:"nextEncryptionKey,omitempty"`
	FormerEncryptionKeys [][]byte `json:"formerEncryptionKeys,omitempty"`
	read                 []byte   // content of the file when it was read; nil for a new file
	// Next are the CAs that will replace the CAs above (rotate.go), by the JSON name of the field.
	Next map[string]certKey `json:"next,omitempty"`
}

type certKey struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

func genSecretsCommand(ios *iostreams.Streams) *cobra.Command {
	var out string
	var force, clientOnly bool
	c := &cobra.Command{
		Use:   "secrets",
		Short: "Make a cluster's CAs and keys (secrets.yaml)",
		Long: "Make a cluster's CAs and keys. The file gives full control of the cluster: protect it accordingly.\n\n" +
			"With --client-ca nothing is replaced in an existing file but the CA of the client certificates that the machines issue. When\n" +
			"machines get a configuration with it, all that they have issued before is refused.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var s *secrets
			var err error
			if clientOnly {
				if s, err = readSecrets(out); err == nil {
					err = s.newClientCA()
				}
			} else {
				s, err = newSecrets()
			}
			if err != nil {
				return err
			}
			if err := s.write(out, force || clientOnly); err != nil {
				return err
			}
			ios.Println("wrote " + out)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "secrets.yaml", "file to write")
	c.Flags().BoolVar(&force, "force", false, "replace an existing file")
	c.Flags().BoolVar(&clientOnly, "client-ca", false, "make another client CA in an existing file, and leave the rest")
	return c
}

// newClientCA replaces the client CA.
func (s *secrets) newClientCA() error {
	made, err := pki.NewCA("orlop clients", clusterCALife)
	if err == nil {
		s.Client = certKey{Cert: string(made.CertPEM()), Key: string(made.KeyPEM())}
	}
	return err
}

func newSecrets() (*secrets, error) {
	s := &secrets{SecretsEncryptionKey: make([]byte, 32)}
	for _, ca := range []struct {
		name string
		to   *certKey
	}{{"kubernetes", &s.Kubernetes}, {"etcd", &s.Etcd}, {"kubernetes front proxy", &s.FrontProxy}, {"orlop machines", &s.Machine}} {
		made, err := pki.NewCA(ca.name, clusterCALife)
		if err != nil {
			return nil, err
		}
		*ca.to = certKey{Cert: string(made.CertPEM()), Key: string(made.KeyPEM())}
	}
	if err := s.newClientCA(); err != nil {
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

func (s *secrets) write(path string, force bool) error {
	text, err := yaml.Marshal(s)
	if err != nil {
		return fmt.Errorf("secrets: cannot format: %w", err)
	}
	// another command may have stored its only copy of a key in the file meanwhile
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

func readSecrets(path string) (*secrets, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("secrets: cannot read: %w", err), Hint: "`orlopctl gen secrets` makes the file"}
	}
	s := &secrets{read: text}
	if err := yaml.UnmarshalStrict(text, s); err != nil {
		return nil, exit.Usagef("secrets: cannot use %s: %w", path, err)
	}
	return s, nil
}

// acceptedKeys returns the encryption keys that are accepted in addition to the current key.
func (s *secrets) acceptedKeys() []config.EncryptionKey {
	if len(s.NextEncryptionKey) != 32 {
		return nil
	}
	return []config.EncryptionKey{config.NewEncryptionKey([32]byte(s.NextEncryptionKey))}
}

// underWay returns the unfinished rotations in the file. A configuration made from the file now
// corresponds to the time before them.
func (s *secrets) underWay() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Next)) {
		all = append(all, "the CA "+name+" is being replaced (`orlopctl trust rotate-ca "+name+"`)")
	}
	if len(s.NextEncryptionKey) > 0 {
		all = append(all, "the key of Secrets is being replaced (`orlopctl trust rotate-key`)")
	}
	return all
}

// pki returns the authorities in the form of the Cluster document.
func (s *secrets) pki() (config.PKI, config.EncryptionKey, error) {
	var out config.PKI
	for _, ca := range []struct {
		name     string
		from     certKey
		to       *config.CertKey
		accepted *[]config.Certificate
	}{
		{"kubernetes", s.Kubernetes, &out.Kubernetes, &out.Accepted.Kubernetes}, {"etcd", s.Etcd, &out.Etcd, &out.Accepted.Etcd},
		{"frontProxy", s.FrontProxy, &out.FrontProxy, &out.Accepted.FrontProxy}, {"machine", s.Machine, &out.Machine, &out.Accepted.Machine},
		{"client", s.Client, &out.Client, &out.Accepted.Client},
	} {
		if ca.name == "client" && ca.from == (certKey{}) {
			continue // machines that issue no certificates
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
