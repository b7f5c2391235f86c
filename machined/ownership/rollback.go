package ownership

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// CheckRollback checks the return from the configuration now to the configuration then, which was
// saved before an upgrade. It returns an error if the machine would trust a CA again that was
// removed since then, perhaps because its key was stolen. owner are the CAs of the operator of a
// configuration without operator CAs, in PEM (Owner).
func CheckRollback(now, then *config.Config, owner []byte) error {
	owners, err := parseOwners(owner)
	if err != nil {
		return err
	}
	var returning []string
	trusted := trustedCAs(now, owners)
	for field, cas := range trustedCAs(then, owners) {
		for _, ca := range cas {
			key := pki.Fingerprint(ca)
			if !slices.ContainsFunc(trusted[field], func(o *x509.Certificate) bool { return pki.Fingerprint(o) == key }) {
				returning = append(returning, fmt.Sprintf("%s: %q, %s", field, ca.Subject.CommonName, key))
			}
		}
	}
	if len(returning) > 0 {
		slices.Sort(returning)
		return fmt.Errorf("the machine would again trust CAs that were removed from its configuration since the upgrade (%s); upgrade to another version instead, or use --force to trust them",
			strings.Join(returning, "; "))
	}
	return nil
}

func parseOwners(owner []byte) ([]*x509.Certificate, error) {
	if len(owner) == 0 {
		return nil, nil
	}
	cas, err := pki.ParseCerts(owner)
	if err != nil {
		return nil, fmt.Errorf("operator's CA: %w", err)
	}
	return cas, nil
}

// trustedCAs returns the CAs that a configuration trusts, by the field with the CAs.
func trustedCAs(c *config.Config, owners []*x509.Certificate) map[string][]*x509.Certificate {
	const operators = "Machine.spec.trust.operatorCAs"
	out := map[string][]*x509.Certificate{}
	for _, ca := range c.Machine.Spec.Trust.OperatorCAs {
		out[operators] = append(out[operators], ca.X509())
	}
	if len(out) == 0 {
		out[operators] = owners
	}
	if c.Cluster == nil {
		return out
	}
	for name, cas := range c.Cluster.Spec.PKI.Trusted() {
		for _, ca := range cas {
			out["Cluster.spec.pki."+name] = append(out["Cluster.spec.pki."+name], ca.X509())
		}
	}
	return out
}
