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
	for i, list := range trustedCAs(then, owners) {
		for _, ca := range list.cas {
			key := pki.Fingerprint(ca)
			if !slices.ContainsFunc(trusted[i].cas, func(o *x509.Certificate) bool { return pki.Fingerprint(o) == key }) {
				returning = append(returning, fmt.Sprintf("%s: %q, %s", list.field, ca.Subject.CommonName, key))
			}
		}
	}
	if len(returning) > 0 {
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

type caList struct {
	field string
	cas   []*x509.Certificate
}

// trustedCAs returns the CAs that a configuration trusts. Each configuration has the same lists in
// the same order.
func trustedCAs(c *config.Config, owners []*x509.Certificate) []caList {
	operators := caList{"Machine.spec.trust.operatorCAs", owners}
	if own := c.Machine.Spec.Trust.OperatorCAs; len(own) > 0 {
		operators = newCAList(operators.field, config.Certificate{}, own)
	}
	var p config.PKI
	if c.Cluster != nil {
		p = c.Cluster.Spec.PKI
	}
	return []caList{
		operators,
		newCAList("Cluster.spec.pki.client", p.Client.Cert, p.Accepted.Client),
		newCAList("Cluster.spec.pki.machine", p.Machine.Cert, p.Accepted.Machine),
		newCAList("Cluster.spec.pki.kubernetes", p.Kubernetes.Cert, p.Accepted.Kubernetes),
		newCAList("Cluster.spec.pki.etcd", p.Etcd.Cert, p.Accepted.Etcd),
		newCAList("Cluster.spec.pki.frontProxy", p.FrontProxy.Cert, p.Accepted.FrontProxy),
	}
}

// newCAList returns the list of a CA that issues certificates (zero for none) and of accepted CAs.
func newCAList(field string, issuer config.Certificate, accepted []config.Certificate) caList {
	list := caList{field: field}
	if !issuer.IsZero() {
		list.cas = append(list.cas, issuer.X509())
	}
	for _, ca := range accepted {
		list.cas = append(list.cas, ca.X509())
	}
	return list
}
