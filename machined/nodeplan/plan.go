package nodeplan

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Facts are the inputs of a plan besides the configuration.
type Facts struct {
	Release  buildinfo.Release
	InMemory bool              // true if the system runs from memory; it runs no node then
	Network  network.State     // addresses and resolvers
	Identity *ecdsa.PrivateKey // the machine key; nil if it is not loaded yet
	Member   Member
	Trust    Trust
	// The key of Artifacts is the digest of an add-on artifact for which the machine has searched.
	// The value is the reason why the artifact is missing, or empty if the machine has it.
	Artifacts map[string]string
	// LLDPLabels are the labels of the Node, by key, that get their values from LLDP announcements
	// of neighbors (Machine.spec.node.lldpLabels).
	LLDPLabels map[string]string
	// Extensions are the extensions of this boot. They do not change until the next boot.
	Extensions []extension.Statement
	Egress     EgressFacts
	Swap       uint64 // the swap in use, in bytes
	Services   ServiceFacts
}

// EgressFacts are facts for the programs that reach servers outside the cluster through the
// forwarder. They are zero for a configuration without egress.
type EgressFacts struct {
	// Proxy is the URL of the forwarder for containerd; empty if the configuration has no proxy.
	Proxy string
	// PublicCAs are the public CAs of the system, in PEM; empty if the configuration has no CAs of
	// the site.
	PublicCAs string
	Problem   error // why Proxy or PublicCAs are unknown
}

// Member is the membership of a worker in its cluster.
type Member struct {
	Joined bool
	// Removed is true if the control plane rejects the certificates of the worker as revoked.
	Removed     bool
	PodsStopped bool // true if the pods have stopped after the removal
	// Machine and Node are the certificates that the cluster has issued to the machine and to its
	// node.
	Machine *pki.Leaf
	Node    nodespec.IssuedCerts
}

// Trust describes the client certificates that the machine accepts.
type Trust struct {
	Callers credentials.CallerCAs
	// Revoked are the revocations that the API server and the kubelet apply.
	Revoked []trust.Revocation
	Problem error // why Callers or Revoked are unknown
}

// ServiceFacts are the facts because of which services do not run.
type ServiceFacts struct {
	Refusal error // why this machine cannot run the configuration at present
	// Volumes is the reason why services wait for volumes: a volume with a part of DATA is not
	// mounted, or the machine has not yet tried to enable swap.
	Volumes error
	// Exposed is true if the kernel lacks the rules of the port guard or of a configured firewall.
	Exposed bool
	// AddressLost is true if the machine has been without an address for longer than the time after
	// which services stop.
	AddressLost bool
}

// Want contains the documents of the node and its services.
type Want struct {
	// Node is valid only if NodeProblem is nil. NodeProblem is ErrNoNode, ErrNoAddress, or the
	// reason why the documents of the node cannot be planned.
	Node        Node
	NodeProblem error
	Services    Services
}

// Node are the documents of a machine that runs a node.
type Node struct {
	Spec        nodespec.Spec
	Credentials credentials.Want
	Containerd  []byte // its configuration file
}

var (
	// ErrNoNode says that the machine runs no node: it has no configuration, its configuration has
	// no cluster, or the system runs from memory.
	ErrNoNode = errors.New("no node")
	// ErrNoAddress is returned while the machine has no address.
	ErrNoAddress = errors.New("no address yet")
)

// Plan returns the documents of the node and its services for the configuration c (nil for none).
func Plan(c *config.Config, f Facts) Want {
	var w Want
	var a credentials.Authorities
	w.Node, a, w.NodeProblem = node(c, f)
	w.Services = services(c, f, w, a)
	return w
}

// node returns the documents of the node and the sources of its credentials. err is
// Want.NodeProblem.
func node(c *config.Config, f Facts) (n Node, a credentials.Authorities, err error) {
	if c == nil || c.Cluster == nil || f.InMemory {
		return n, a, ErrNoNode
	}
	if n.Spec, err = nodeSpec(c, f.Network, f.Release); err != nil {
		return n, a, err
	}
	n.Spec.Node.Swap = f.Swap
	n.Containerd = containerdConfig(n.Spec.Node.PauseImage, n.Spec.External.Network, c.Machine.Spec.Metrics != nil, f.Extensions)
	if f.Egress.Problem != nil {
		return n, a, f.Egress.Problem
	}
	if tls := n.Spec.DNS.TLS; tls != nil {
		tls.CA = serverCAs(c, c.Network.Spec.DNS.TLS.CA).InFile(f.Egress.PublicCAs)
	}
	if a, err = authorities(c, f); err != nil {
		return n, a, err
	}
	if n.Credentials, err = credentials.Plan(n.Spec, a); err != nil {
		return n, a, err
	}
	settings, callers := metricsSettings(c.Machine.Spec.Metrics), credentials.CallerCAs{}
	if settings != nil {
		if callers, err = f.Trust.Callers, f.Trust.Problem; err != nil {
			return n, a, err
		}
	}
	return n, a, n.Credentials.Metrics(n.Spec, a, settings, callers)
}

// API returns the credentials of apid, for the configuration c (nil for none). It fails if the
// trusted clients are unknown (Trust.Problem).
func API(c *config.Config, f Facts) (credentials.Want, error) {
	if f.Trust.Problem != nil {
		return credentials.Want{}, f.Trust.Problem
	}
	name, ca, issued := network.DefaultHostname, (*pki.CA)(nil), (*pki.Leaf)(nil)
	if c != nil {
		name = c.Machine.Metadata.Name
		if c.Cluster != nil && !c.Cluster.Spec.PKI.Machine.Key.IsZero() {
			var err error
			if ca, err = pki.ParseCA(c.Cluster.Spec.PKI.Machine.PEM()); err != nil {
				return credentials.Want{}, fmt.Errorf("Cluster.spec.pki.machine: %w", err)
			}
		}
	}
	if c.IsWorker() && f.Member.Joined {
		issued = f.Member.Machine
	}
	return credentials.APIServer(f.Identity, name, Addresses(c, f.Network), ca, issued, f.Trust.Callers), nil
}

// metricsSettings returns the settings of metricsd. It returns nil if no metrics are configured.
func metricsSettings(m *config.Metrics) *nodespec.MetricsSettings {
	if m == nil {
		return nil
	}
	return &nodespec.MetricsSettings{
		From: m.From, Tokens: slices.Contains(m.Callers, config.CallerToken), Certificates: slices.Contains(m.Callers, config.CallerCertificate),
	}
}
