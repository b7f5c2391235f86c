package gen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	year = 365 * 24 * time.Hour
	// operatorCATTL is long because the CA is part of the image.
	operatorCATTL = 20 * year
	// ClusterCATTL is the TTL of the CAs of a cluster.
	ClusterCATTL = 10 * year
	// ClientTTL is short to limit the damage of a stolen certificate. An operator with the CA key
	// makes another certificate in a second; for other operators a machine renews the certificate
	// (orlopctl/connect).
	ClientTTL = 24 * time.Hour
	// clientBackdate makes a client certificate valid on a machine whose clock shows the build time
	// of its image.
	clientBackdate = 2 * year
)

// The files in an operator's directory.
const (
	CACert    = "ca.crt"
	CAKey     = "ca.key"
	AdminName = "admin"
)

// MakeOperator creates the files in an operator's directory.
func MakeOperator(dir, name string, force bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("operator: cannot create the directory: %w", err)
	}
	ca, err := pki.NewCA(name, operatorCATTL)
	if err != nil {
		return err
	}
	admin, err := IssueClient(ca, AdminName, []string{pki.RoleAdmin}, ClientTTL)
	if err != nil {
		return err
	}
	// All files in one step: ca.key may be stored elsewhere, and in that case the other files must
	// not be replaced either.
	return secretfile.WriteAll(append([]secretfile.File{
		{Path: filepath.Join(dir, CAKey), Content: ca.KeyPEM()}, {Path: filepath.Join(dir, CACert), Content: ca.CertPEM()},
	}, leafFiles(dir, AdminName, admin)...), force)
}

// RoleNames returns "reader, operator, admin, …".
func RoleNames() string { return strings.Join(pki.Roles(), ", ") }

// ReadOperator reads the operator CA with its key from the operator's directory.
func ReadOperator(dir string) (*pki.CA, error) {
	cert, err := os.ReadFile(filepath.Join(dir, CACert))
	if err != nil {
		return nil, exit.Usagef("operator: cannot read the CA: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, CAKey))
	if err != nil {
		return nil, exit.Usagef("operator: cannot read the CA's key: %w", err)
	}
	return pki.ParseCA(cert, key)
}

// IssueClient issues a client certificate by an operator CA.
func IssueClient(ca *pki.CA, name string, organisations []string, ttl time.Duration) (*pki.Leaf, error) {
	return ca.Issue(pki.Spec{CN: name, O: organisations, Usage: pki.Client, TTL: ttl, Backdate: clientBackdate})
}

// MakeClient issues a client certificate by an operator CA, and writes its files.
func MakeClient(ca *pki.CA, dir, name, organisation string, ttl time.Duration, force bool) error {
	leaf, err := IssueClient(ca, name, []string{organisation}, ttl)
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

// renewBefore is the remaining validity at which a certificate is renewed, if no machine issued it.
const renewBefore = 8 * time.Hour

// RenewalDue reports whether a certificate has expired or soon will. It ignores an unreadable
// certificate; other code reports that.
func RenewalDue(cert, key string) (*pki.Leaf, bool) {
	leaf, err := pki.ParseLeaf([]byte(cert), []byte(key))
	return leaf, err == nil && time.Until(leaf.Cert.NotAfter) < renewBefore
}

// FreshAdmin renews the admin's certificate in an operator's directory, if necessary and if the
// CA's key is there.
func FreshAdmin(dir string) error {
	cert, err := os.ReadFile(filepath.Join(dir, AdminName+".crt"))
	key, keyErr := os.ReadFile(filepath.Join(dir, AdminName+".key"))
	if err != nil || keyErr != nil {
		return nil // the next reader reports the missing files
	}
	if _, is := RenewalDue(string(cert), string(key)); !is {
		return nil
	}
	ca, err := ReadOperator(dir)
	if err != nil {
		return nil
	}
	return MakeClient(ca, dir, AdminName, pki.RoleAdmin, ClientTTL, true)
}
