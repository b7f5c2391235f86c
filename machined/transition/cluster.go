package transition

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// CheckFixed rejects a change of a value on which the cluster's data depends. All hints are the
// same: only a reset drops the data.
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

// checkCAChange rejects a new CA that the previous configuration did not accept, and a CA change
// after which certificates of the former CA are not accepted. accepted and acceptedAfter are the
// accepted CAs of the previous and of the next configuration. If the former CA has expired, its
// certificates are invalid in any case.
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

// checkLockout rejects a configuration that does not trust the caller's CA: the caller could not
// revert it.
func checkLockout(next *config.Config, caller Caller) Problems {
	if caller.CA == "" {
		return nil
	}
	is := func(ca *x509.Certificate) bool { return pki.Fingerprint(ca) == caller.CA }
	if slices.ContainsFunc(caller.Operators, is) {
		return nil
	}
	// the client CA is trusted only if operator CAs exist
	if len(caller.Operators) > 0 && next.Cluster != nil && !next.Cluster.Spec.PKI.Client.Cert.IsZero() {
		nextPKI := next.Cluster.Spec.PKI
		if is(nextPKI.Client.Cert.X509()) || slices.ContainsFunc(nextPKI.Accepted.Client, func(c config.Certificate) bool { return is(c.X509()) }) {
			return nil
		}
	}
	return problem("", "the CA of your certificate is neither in Machine.spec.trust.operatorCAs nor Cluster.spec.pki.client, so this machine would lock you out", "add it, or apply with a certificate of a listed CA")
}
