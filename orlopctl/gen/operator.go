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
	// operatorCATTL is long, because a new CA needs a new image.
	operatorCATTL = 20 * year
	// ClusterCATTL is the TTL of the CAs of a cluster.
	ClusterCATTL = 10 * year
	// ClientTTL is short to limit the damage of a stolen certificate. An operator with the key of
	// the CA makes a new certificate at once. For other operators, a machine renews the certificate
	// (orlopctl/connect).
	ClientTTL = 24 * time.Hour
	// clientBackdate is the time by which the validity of a client certificate begins earlier. The
	// clock of a machine may show the build time of its image, and the machine must accept the
	// certificate.
	clientBackdate = 2 * year
)

// The files in an operator's directory.
const (
	CACert    = "ca.crt"
	CAKey     = "ca.key"
	AdminName = "admin"
)

// MakeOperator creates the CA and the first certificate of an operator, and writes their files to a
// directory.
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
	// WriteAll rejects the whole set if a file exists: the operator may store ca.key elsewhere, and
	// in that case the other files must not be replaced either.
	return secretfile.WriteAll(append([]secretfile.File{
		{Path: filepath.Join(dir, CAKey), Content: ca.KeyPEM()}, {Path: filepath.Join(dir, CACert), Content: ca.CertPEM()},
	}, leafFiles(dir, AdminName, admin)...), force)
}

// RoleNames returns "reader, operator, admin, …".
func RoleNames() string { return strings.Join(pki.Roles(), ", ") }

// ReadOperator reads the operator CA and its key from the operator's directory.
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

// IssueClient issues a client certificate with an operator CA. It makes the key.
func IssueClient(ca *pki.CA, name string, organisations []string, ttl time.Duration) (*pki.Leaf, error) {
	return ca.Issue(pki.Spec{CN: name, O: organisations, Usage: pki.Client, TTL: ttl, Backdate: clientBackdate})
}

// MakeClient issues a client certificate with an operator CA, and writes NAME.crt and NAME.key.
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

// leafFiles returns the contents and paths of the files for a client certificate and its key.
func leafFiles(dir, name string, leaf *pki.Leaf) []secretfile.File {
	return []secretfile.File{{Path: filepath.Join(dir, name+".key"), Content: leaf.KeyPEM()}, {Path: filepath.Join(dir, name+".crt"), Content: leaf.CertPEM()}}
}

// renewBefore is the remaining validity at which the tool itself renews a certificate. It does not
// apply to certificates of machines.
const renewBefore = 8 * time.Hour

// RenewalDue returns the parsed certificate, and reports whether it expires within renewBefore or
// has expired. For an unreadable certificate it returns nil and false, because other code reports
// the error.
func RenewalDue(cert, key string) (*pki.Leaf, bool) {
	leaf, err := pki.ParseLeaf([]byte(cert), []byte(key))
	return leaf, err == nil && time.Until(leaf.Cert.NotAfter) < renewBefore
}

// FreshAdmin renews the admin's certificate in an operator's directory, if it is due for renewal
// and the key of the CA is in the directory. Otherwise it returns nil.
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
