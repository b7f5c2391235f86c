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

// Facts are the facts on which a plan depends.
type Facts struct {
	Release  buildinfo.Release
	InMemory bool              // the system is not installed: it runs no node
	Network  network.State     // addresses and resolvers
	Identity *ecdsa.PrivateKey // the machine key; nil if it is not loaded yet
	Member   Member
	Trust    Trust
	// why an artifact of an add-on is missing, by digest; empty: present
	Artifacts map[string]string
	// labels of the Node that the machine's neighbors give, by key (Machine.spec.node.lldpLabels)
	LLDPLabels map[string]string
	// extensions that take effect until the next boot
	Extensions []extension.Statement
	Egress     EgressFacts
	Swap       uint64 // the swap in use, in bytes
	Services   ServiceFacts
}

// EgressFacts are the facts for the programs that reach servers outside the cluster by the
// forwarder; zero for a configuration without egress.
type EgressFacts struct {
	// Proxy is the URL of the forwarder for containerd; empty if the configuration has no proxy.
	Proxy string
	// PublicCAs are the public CAs of the system, in PEM; empty without CAs of the site.
	PublicCAs string
	Problem   error // why they are unknown
}

// Member is the membership of a worker in its cluster.
type Member struct {
	Joined bool
	// the control plane rejects its certificates as revoked
	Removed     bool
	PodsStopped bool // after the removal, its pods have stopped
	// certificates issued to the machine and to its node
	Machine *pki.Leaf
	Node    nodespec.IssuedCerts
}

// Trust are the clients that the machine accepts.
type Trust struct {
	Callers credentials.CallerCAs
	// revocations for the API server and the kubelet
	Revoked []trust.Revocation
	Problem error // why they are unknown
}

// ServiceFacts are the facts that hold services back.
type ServiceFacts struct {
	Refusal error // why this machine cannot run the configuration at present
	Volumes error // why a part of DATA is not in its place, or swap has not been tried
	// the kernel has no port guard, or no rules in the place of a configured firewall
	Exposed bool
	// the machine has had no address for so long that services stop
	AddressLost bool
}

// Want contains the documents of the node and its services.
type Want struct {
	// unusable with NodeProblem, which is ErrNoNode, ErrNoAddress or says why the documents cannot
	// be planned
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
	// ErrNoNode is returned if the configuration, or a system in memory, runs no node.
	ErrNoNode = errors.New("no node")
	// ErrNoAddress is returned while the machine has no address.
	ErrNoAddress = errors.New("no address yet")
)

// Plan returns the documents of the node and its services for a configuration (nil for none).
func Plan(c *config.Config, f Facts) Want {
	var w Want
	var a credentials.Authorities
	w.Node, a, w.NodeProblem = node(c, f)
	w.Services = services(c, f, w, a)
	return w
}

// node returns the documents of the node, and the sources of its credentials.
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

// API returns the credentials of apid.
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

// metricsSettings returns the settings of metricsd; nil without metrics.
func metricsSettings(m *config.Metrics) *nodespec.MetricsSettings {
	if m == nil {
		return nil
	}
	return &nodespec.MetricsSettings{
		From: m.From, Tokens: slices.Contains(m.Callers, config.CallerToken), Certificates: slices.Contains(m.Callers, config.CallerCertificate),
	}
}
