package ownership

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Operators returns the CAs of the operators in PEM; empty if the machine is unclaimed.
func Operators(c *config.Config) ([]byte, error) {
	if c != nil && len(c.Machine.Spec.Trust.OperatorCAs) > 0 {
		var all []byte
		for _, ca := range c.Machine.Spec.Trust.OperatorCAs {
			all = append(all, ca.PEM()...)
		}
		return all, nil
	}
	return Owner()
}

// Owner returns the CA of the operator of a machine without a configuration, in PEM; empty if the
// machine is unclaimed.
func Owner() ([]byte, error) {
	for _, name := range []string{paths.OperatorCA, paths.PairedCA, paths.PairedCAInMemory} {
		text, err := os.ReadFile(name)
		if err == nil {
			return text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("api: cannot read the operator's CA: %w", err)
		}
	}
	return nil, nil
}

// PersistOwner moves the CA from memory to STATE after STATE is mounted.
func PersistOwner() error {
	if _, err := os.Stat(paths.PairedCA); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ca, err := os.ReadFile(paths.PairedCAInMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = safefile.WriteFile(paths.PairedCA, ca, 0o600)
	}
	return err
}

// Authority is a CA of a configuration that can issue certificates for every role, up to
// admin (apid.OperatorCAsFile and apid.ClientCAsFile).
type Authority struct {
	Field    string // "Machine.spec.trust.operatorCAs[1]"
	CA       *x509.Certificate
	Operator bool // it is in the list of operator CAs
}

// Authorities returns all of them in a configuration. It includes accepted client CAs
// without a client CA, which are not trusted yet: a later change would activate them.
func Authorities(c *config.Config) []Authority {
	var out []Authority
	for i, ca := range c.Machine.Spec.Trust.OperatorCAs {
		out = append(out, Authority{fmt.Sprintf("Machine.spec.trust.operatorCAs[%d]", i), ca.X509(), true})
	}
	if c.Cluster == nil {
		return out
	}
	own := c.Cluster.Spec.PKI
	if !own.Client.Cert.IsZero() {
		out = append(out, Authority{"Cluster.spec.pki.client.cert", own.Client.Cert.X509(), false})
	}
	for i, ca := range own.Accepted.Client {
		out = append(out, Authority{fmt.Sprintf("Cluster.spec.pki.accepted.client[%d]", i), ca.X509(), false})
	}
	return out
}

// CheckMedium rejects a configuration that would lock out the operator of the machine (the CAs in
// PEM; empty if unclaimed), or that would admit other operators: every person with physical access
// can plug in a medium, and the medium is not authenticated. The CAs of a configuration must be CAs
// of the operator. The certificates of Cluster.spec.pki.machine only have the role of a machine,
// and are not checked.
func CheckMedium(own []byte, next *config.Config) error {
	if len(own) == 0 {
		return nil
	}
	cas, err := pki.ParseCerts(own)
	if err != nil {
		return fmt.Errorf("operator's CA: %w", err)
	}
	owners := map[string]bool{}
	for _, ca := range cas {
		owners[pki.Fingerprint(ca)] = true
	}
	named := map[string]bool{}
	for _, a := range Authorities(next) {
		id := pki.Fingerprint(a.CA)
		if !owners[id] {
			return fmt.Errorf("%s: cannot add the CA %q (%s): this machine is claimed, by its image or by pairing, and a medium cannot admit other operators; remove it from the medium, and apply it over the API as the operator of the machine", a.Field, a.CA.Subject.CommonName, id)
		}
		if a.Operator {
			named[id] = true
		}
	}
	if len(next.Machine.Spec.Trust.OperatorCAs) > 0 && len(named) < len(owners) {
		return errors.New("Machine.spec.trust.operatorCAs: cannot omit the CA of the operator who claimed this machine, by its image or by pairing: a medium cannot lock out the operator; add it to the list, or omit the list")
	}
	return nil
}
