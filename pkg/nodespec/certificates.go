package nodespec

import (
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// The certificates of a cluster machine and of its node: subjects, names, addresses and files. A
// control-plane machine issues its own (machined/credentials); a worker gets them from the control
// plane (machined/membership).

// LeafBackdate is the time by which NotBefore precedes the issuance of a leaf. The clock of a
// machine without a battery-backed clock may be set back by this time without making a leaf
// invalid.
const LeafBackdate = 30 * 24 * time.Hour

// IssuedCerts are the certificates issued to a worker, by the name of the certificate file.
type IssuedCerts map[string]*pki.Leaf

// NodeLeaf is a certificate that every node has, as files of its directory.
type NodeLeaf struct {
	Cert, Key string
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

// MachineLeaf is the certificate of a cluster machine, issued by the machine CA.
func MachineLeaf(name string, ips []netip.Addr) pki.Spec {
	return pki.Spec{
		CN: name, O: []string{pki.RoleMachine}, Usage: pki.Both, DNS: pki.Distinct([]string{name, "localhost"}),
		IPs: pki.Distinct(append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, ips...)),
	}
}

func client(cn string, groups ...string) pki.Spec {
	return pki.Spec{CN: cn, O: groups, Usage: pki.Client}
}
