package transition

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// CheckFixed rejects a change of a value on which the data of the cluster depends. Fixed values can
// only change after a reset, which drops the data. CAs, encryption keys and the key manager can
// change, but only step by step.
func CheckFixed(before, next *config.Config, now time.Time) Problems {
	if before == nil || before.Cluster == nil {
		return nil
	}
	changed := func(field string, is, would any) Problems {
		return problem(field, fmt.Sprintf("cannot change from %v to %v on a machine that is part of a cluster", is, would), "reset it first (orlopctl reset --wipe all)")
	}
	b, n := before.Cluster, next.Cluster
	switch {
	case n == nil:
		return changed("Cluster", b.Metadata.Name, "none")
	case b.Metadata.Name != n.Metadata.Name:
		return changed("Cluster.metadata.name", b.Metadata.Name, n.Metadata.Name)
	case before.Machine.Metadata.Name != next.Machine.Metadata.Name:
		return changed("Machine.metadata.name", before.Machine.Metadata.Name, next.Machine.Metadata.Name)
	case before.Machine.Spec.Role != next.Machine.Spec.Role:
		return changed("Machine.spec.role", before.Machine.Spec.Role, next.Machine.Spec.Role)
	case !slices.Equal(b.Spec.Networks.Pods, n.Spec.Networks.Pods):
		return changed("Cluster.spec.networks.pods", b.Spec.Networks.Pods, n.Spec.Networks.Pods)
	case !slices.Equal(b.Spec.Networks.Services, n.Spec.Networks.Services):
		return changed("Cluster.spec.networks.services", b.Spec.Networks.Services, n.Spec.Networks.Services)
	case b.Spec.Networks.Domain != n.Spec.Networks.Domain:
		return changed("Cluster.spec.networks.domain", b.Spec.Networks.Domain, n.Spec.Networks.Domain)
	}
	was, is := b.Spec.PKI, n.Spec.PKI
	return slices.Concat(
		checkEncryptionKeys(b.Spec, n.Spec),
		checkKMS(b.Spec, n.Spec),
		checkCAChange("kubernetes", was.Kubernetes.Cert, is.Kubernetes.Cert, was.Accepted.Kubernetes, is.Accepted.Kubernetes, now),
		checkCAChange("etcd", was.Etcd.Cert, is.Etcd.Cert, was.Accepted.Etcd, is.Accepted.Etcd, now),
		checkCAChange("machine", was.Machine.Cert, is.Machine.Cert, was.Accepted.Machine, is.Accepted.Machine, now),
	)
}

// checkCAChange rejects two kinds of CA changes: to a new CA that the previous configuration did
// not accept, and from a former CA that the next configuration does not accept. was is the former
// CA, and is the new CA. accepted and acceptedAfter are the accepted CAs of the previous and the
// next configuration. An expired CA may be replaced in one step, because its certificates are
// invalid anyway.
func checkCAChange(name string, was, is config.Certificate, accepted, acceptedAfter []config.Certificate, now time.Time) Problems {
	has := func(list []config.Certificate, c config.Certificate) bool {
		return slices.ContainsFunc(list, func(o config.Certificate) bool { return o.PEM() == c.PEM() })
	}
	if was.PEM() == is.PEM() || was.IsZero() || now.After(was.X509().NotAfter) || has(accepted, is) && has(acceptedAfter, was) {
		return nil
	}
	return problem("Cluster.spec.pki."+name, "cannot change in one step to a CA that was not accepted before, or from a CA that is not accepted afterwards",
		"`orlopctl trust rotate-ca` does it step by step (Cluster.spec.pki.accepted."+name+")")
}

// checkLockout rejects a configuration that does not trust the CA of the caller's certificate,
// because the caller could not revert it.
func checkLockout(next *config.Config, caller Caller) Problems {
	if caller.CA == "" {
		return nil
	}
	is := func(ca *x509.Certificate) bool { return pki.Fingerprint(ca) == caller.CA }
	if slices.ContainsFunc(caller.Operators, is) {
		return nil
	}
	// The machine trusts the client CA only if it also has operator CAs.
	if len(caller.Operators) > 0 && next.Cluster != nil && !next.Cluster.Spec.PKI.Client.Cert.IsZero() {
		nextPKI := next.Cluster.Spec.PKI
		if is(nextPKI.Client.Cert.X509()) || slices.ContainsFunc(nextPKI.Accepted.Client, func(c config.Certificate) bool { return is(c.X509()) }) {
			return nil
		}
	}
	return problem("", "the CA of your certificate is neither in Machine.spec.trust.operatorCAs nor Cluster.spec.pki.client, so this machine would lock you out", "add it, or apply with a certificate of a listed CA")
}
