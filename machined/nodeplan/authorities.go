package nodeplan

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// authorities returns the sources of the machine's credentials. On a control-plane machine, these
// sources are the CAs of the Cluster document with their keys. On a worker, they are the
// certificate of the Kubernetes CA, without its key, and the certificates that the cluster has
// issued to the node.
func authorities(c *config.Config, f Facts) (a credentials.Authorities, err error) {
	labels, err := json.Marshal(nodeLabels(c.Machine.Spec.Node, f.LLDPLabels))
	if err != nil {
		return a, fmt.Errorf("Machine.spec.node: cannot describe: %w", err)
	}
	given := c.Cluster.Spec.Kubernetes.MachineObjects
	objects, err := json.Marshal(nodespec.MachineObjects{Enabled: given.Enabled, Claims: given.Claims})
	if err != nil {
		return a, fmt.Errorf("Cluster.spec.kubernetes.machineObjects: cannot describe: %w", err)
	}
	revoked, err := revokedSet(f.Trust)
	if err != nil {
		return a, err
	}
	passwords, err := bgpPasswords(c.Network.Spec.BGP)
	if err != nil {
		return a, fmt.Errorf("Network.spec.bgp: cannot describe: %w", err)
	}
	if c.IsWorker() {
		own := c.Cluster.Spec.PKI
		return credentials.Authorities{
			Kubernetes: credentials.Authority{CA: &pki.CA{Cert: own.Kubernetes.Cert.X509()}, Accepted: config.X509s(own.Accepted.Kubernetes)},
			NodeLabels: labels, MachineObjects: objects, RevokedSet: revoked, BGPPasswords: passwords, Issued: f.Member.Node,
		}, nil
	}
	if a, err = CAs(c.Cluster); err != nil {
		return a, err
	}
	a.Access = Access(c, f.Egress.PublicCAs)
	a.KMS = credentials.KMS{KMS: c.Cluster.Spec.Kubernetes.APIServer.KMS, SiteCAs: Egress(c).CAs}
	a.NodeLabels, a.MachineObjects, a.RevokedSet, a.BGPPasswords = labels, objects, revoked, passwords
	if a.Addons, err = json.Marshal(addons(c.Addons, f.Artifacts)); err != nil {
		return a, fmt.Errorf("add-ons: cannot describe: %w", err)
	}
	return a, nil
}

// revokedSet returns the revocations for the API server and the kubelet, as JSON. The JSON also has
// the fingerprints of the CAs of client certificates that the management API accepts: the CAs of
// the operators and the client CAs.
func revokedSet(t Trust) ([]byte, error) {
	if t.Problem != nil {
		return nil, t.Problem
	}
	out := trust.RevokedSet{TrustedRoots: []string{}, Revoked: t.Revoked}
	for _, cas := range [][]byte{t.Callers.Operators, t.Callers.Clients} {
		if len(cas) == 0 {
			continue
		}
		known, err := pki.ParseCerts(cas)
		if err != nil {
			return nil, fmt.Errorf("operators' authorities: %w", err)
		}
		for _, ca := range known {
			out.TrustedRoots = append(out.TrustedRoots, pki.Fingerprint(ca))
		}
	}
	return json.Marshal(out)
}

// CAs returns the CAs of a Cluster document, the key of service accounts and the encryption keys.
// It fails if the document lacks the key of one of them.
func CAs(c *config.Cluster) (credentials.Authorities, error) {
	var a credentials.Authorities
	var err error
	own, accepted := c.Spec.PKI, c.Spec.PKI.Accepted
	if a.Kubernetes.CA, err = pki.ParseCA(own.Kubernetes.PEM()); err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.kubernetes: %w", err)
	}
	if a.Etcd.CA, err = pki.ParseCA(own.Etcd.PEM()); err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.etcd: %w", err)
	}
	if a.FrontProxy.CA, err = pki.ParseCA(own.FrontProxy.PEM()); err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.frontProxy: %w", err)
	}
	a.Kubernetes.Accepted, a.Etcd.Accepted, a.FrontProxy.Accepted = config.X509s(accepted.Kubernetes), config.X509s(accepted.Etcd), config.X509s(accepted.FrontProxy)
	a.ServiceAccountKey = []byte(c.Spec.PKI.ServiceAccountKey.PEM())
	key := c.Spec.PKI.ServiceAccountKey.Signer()
	if key == nil {
		return a, errors.New("Cluster.spec.pki.serviceAccountKey: is missing")
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.serviceAccountKey: %w", err)
	}
	a.ServiceAccountPub = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	a.EncryptionKeys = c.Spec.EncryptionKeys()
	return a, nil
}

// Access returns the authentication and authorization of the API server. publicCAs are the public
// CAs of the system, in PEM. They can be empty when the caller only checks the documents.
func Access(c *config.Config, publicCAs string) credentials.Access {
	k, e := c.Cluster.Spec.Kubernetes, Egress(c)
	return credentials.Access{
		Authentication: k.Authentication, Authorization: k.Authorization,
		Issuers: credentials.IssuerAccess{Proxy: e.Proxy != "", CAs: e.CAs, PublicCAs: publicCAs},
	}
}

// addons converts the configured add-ons to the form of the orchestrator. found maps the SHA-256
// digest of each artifact that was searched to the reason why it is missing. An empty reason means
// that the machine has the artifact.
func addons(all []config.Addon, found map[string]string) []nodespec.Addon {
	out := []nodespec.Addon{}
	for _, a := range all {
		addon := nodespec.Addon{
			Name: a.Metadata.Name, Namespace: a.Spec.DefaultNamespace(), Namespaces: a.Spec.Scope.Namespaces, Kubernetes: a.Spec.Requires.Kubernetes.Version(), Within: time.Duration(a.Spec.HealthyWithin),
			Rights: nodespec.AddonRights{NamespaceAdmin: a.Spec.Rights.NamespaceAdmin, ClusterAdmin: a.Spec.Rights.ClusterAdmin},
		}
		for _, m := range a.Spec.Manifests {
			addon.Manifests = append(addon.Manifests, m.Reveal())
		}
		if from := a.Spec.Artifact; from != (config.Artifact{}) {
			missing, looked := found[from.SHA256]
			if !looked {
				missing = from.String() + " is being searched"
			}
			addon.Artifact = nodespec.Artifact{Name: from.String(), SHA256: from.SHA256, Missing: missing}
		}
		for _, r := range a.Spec.Rights.Rules {
			rule := nodespec.PolicyRule{Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs, Verbs: r.Verbs}
			for _, g := range r.APIGroups {
				rule.APIGroups = append(rule.APIGroups, g.String())
			}
			addon.Rights.Rules = append(addon.Rights.Rules, rule)
		}
		out = append(out, addon)
	}
	return out
}

// nodeLabels returns the labels and taints of the Node in the form of the orchestrator. lldp
// contains the labels that LLDP has set, by key. It can still contain labels of the previous
// configuration, so nodeLabels takes only the keys that the configuration n names.
func nodeLabels(n config.Node, lldp map[string]string) nodespec.NodeLabels {
	out := nodespec.NodeLabels{Labels: maps.Clone(n.Labels)}
	for _, l := range n.LLDPLabels {
		if value := lldp[l.Key]; value != "" {
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			out.Labels[l.Key] = value
		}
	}
	for _, t := range n.Taints {
		out.Taints = append(out.Taints, nodespec.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return out
}

// CallerCAs returns the CAs of the clients that a machine with the configuration c (nil for none)
// accepts. operators are the CAs of its operators, in PEM. damaged says why the ledger is
// unreadable; nil if it is readable. CallerCAs does not set the revocations of the result.
func CallerCAs(c *config.Config, operators []byte, damaged error) credentials.CallerCAs {
	out := credentials.CallerCAs{Operators: operators}
	if c == nil || c.Cluster == nil {
		return out
	}
	own := c.Cluster.Spec.PKI
	out.Machines = trustedCAs(own.Machine.Cert, own.Accepted.Machine)
	// With a damaged ledger, the machine does not know which of the issued client certificates are
	// revoked, so it accepts none of them. Certificates of the operators' own CAs stay valid.
	if !own.Client.Cert.IsZero() && damaged == nil {
		out.Clients = trustedCAs(own.Client.Cert, own.Accepted.Client)
	}
	return out
}

// trustedCAs returns own and the CAs that are accepted in addition to it, in PEM. The result is
// empty if own is empty.
func trustedCAs(own config.Certificate, accepted []config.Certificate) []byte {
	if own.IsZero() {
		return nil
	}
	return pki.EncodeCerts(append(config.X509s(accepted), own.X509())...)
}
