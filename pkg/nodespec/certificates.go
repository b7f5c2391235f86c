package nodespec

import (
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// This file describes the certificates of a cluster machine and of its node: subjects, names,
// addresses and files. A control-plane machine issues its own certificates (machined/credentials).
// A worker gets its certificates from a control-plane machine (machined/membership).

// LeafBackdate is the time between NotBefore of a leaf and its issuance. So a leaf is valid even on
// a machine with a clock that is up to this time behind, for example after a boot without a
// battery-backed clock.
const LeafBackdate = 30 * 24 * time.Hour

// IssuedCerts are the certificates that the control plane has issued to a worker. The key is the
// file name of the certificate.
type IssuedCerts map[string]*pki.Leaf

// NodeLeaf is a certificate that every node has.
type NodeLeaf struct {
	Cert, Key string // names of the files in paths.KubeNode
	Spec      pki.Spec
}

// NodeLeaves returns the certificates of a node. The Kubernetes CA issues all of them.
func NodeLeaves(name string, ips []netip.Addr) []NodeLeaf {
	serving := pki.Spec{CN: "system:node:" + name, O: []string{"system:nodes"}, Usage: pki.Server, DNS: []string{name}, IPs: ips}
	return []NodeLeaf{
		{KubeletCert, KubeletKey, client("system:node:"+name, "system:nodes")},
		{KubeletServing, KubeletServingKey, serving},
		{ProxyCert, ProxyKey, client("system:kube-proxy")},
		{DNSCert, DNSKey, client("orlop:coredns")},
		{NodeAgentCert, NodeAgentKey, client(NodeAgentUser+name, NodeAgentGroup)},
	}
}

// MachineLeaf returns the specification of the certificate that the machine CA issues to a cluster
// machine. apid serves with this certificate, and the machine calls other machines with it.
func MachineLeaf(name string, ips []netip.Addr) pki.Spec {
	return pki.Spec{
		CN: name, O: []string{pki.RoleMachine}, Usage: pki.Both, DNS: pki.Distinct([]string{name, "localhost"}),
		IPs: pki.Distinct(append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, ips...)),
	}
}

func client(cn string, groups ...string) pki.Spec {
	return pki.Spec{CN: cn, O: groups, Usage: pki.Client}
}
