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

// Operators returns the CAs of the operators in PEM, for the configuration c (nil for none). The
// result is empty if the machine is unclaimed. An error means that a stored CA is unreadable.
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

// Owner returns the CA of the operator of a machine without operator CAs in its configuration, in
// PEM. It is the CA in the image or the CA of the pairing. The result is empty if the machine is
// unclaimed.
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

// PersistOwner copies the CA of the pairing from memory to STATE; the caller has mounted STATE. It
// does nothing if STATE already has a CA, or memory has none.
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

// Authority is a CA in a configuration that can issue certificates for every role, up to admin
// (apid.OperatorCAsFile and apid.ClientCAsFile).
type Authority struct {
	Field    string // for example "Machine.spec.trust.operatorCAs[1]"
	CA       *x509.Certificate
	Operator bool // true if the CA is in the list of operator CAs
}

// Authorities returns all authorities in a configuration: operator CAs, the client CA and accepted
// client CAs. It includes accepted client CAs of a configuration without a client CA. The machine
// does not trust them yet, but would after a later change that adds a client CA.
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

// CheckMedium checks a configuration on a boot medium. Every person with physical access can plug
// in a medium, and the machine cannot authenticate it. own are the CAs of the machine's operators,
// in PEM.
//
// If the machine is unclaimed (own is empty), CheckMedium accepts every configuration. Else it
// returns an error in two cases. If the configuration has an authority that is not in own, it would
// admit other operators. If its list of operator CAs omits a CA in own, it would lock out an
// operator. CheckMedium does not check the CA for machines (Cluster.spec.pki.machine), because
// certificates of this CA have only the role of a machine.
func CheckMedium(own []byte, next *config.Config) error {
	if len(own) == 0 {
		return nil
	}
	cas, err := parseOwners(own)
	if err != nil {
		return err
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
