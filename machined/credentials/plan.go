package credentials

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// leafTTL is the TTL of every leaf. The machine issues its leaves at each boot and after two thirds
// of the TTL, so a longer TTL has no advantage. With a shorter TTL, leaves could expire while a
// machine without a time source runs on its build time.
const leafTTL = 365 * 24 * time.Hour

// Authority is a CA of the cluster.
type Authority struct {
	*pki.CA                      // the issuing CA
	Accepted []*x509.Certificate // also trusted: the next CA, or the previous one
}

// Bundle returns all trusted CAs in PEM. The result stays the same when another of these CAs
// becomes the issuer.
func (a Authority) Bundle() []byte {
	return pki.EncodeCerts(append(slices.Clone(a.Accepted), a.Cert)...)
}

// Authorities are the cluster keys from which a machine issues its own credentials. A worker has no
// keys: it has the certificate of the Kubernetes CA and the certificates issued to it.
type Authorities struct {
	Kubernetes, Etcd, FrontProxy Authority
	ServiceAccountKey            []byte // PEM, private
	ServiceAccountPub            []byte // PEM
	// for Secrets at rest: the first key encrypts, all keys decrypt
	EncryptionKeys []config.EncryptionKey
	KMS            KMS
	Access         Access
	RevokedSet     []byte // JSON, a trust.RevokedSet
	Addons         []byte // JSON, a list of nodespec.Addon
	NodeLabels     []byte // JSON, a nodespec.NodeLabels
	MachineObjects []byte // JSON, a nodespec.MachineObjects
	BGPPasswords   []byte // JSON, passwords by address; nil: none
	Issued         nodespec.IssuedCerts
}

// ReadAtStart returns the data that the orchestrator process with a directory reads only at its
// start; processes reload all other files after a change. etcd reads the CA of its peers at the
// start, the API server and the controllers read the token key, and the controllers read the CA
// that they publish in every namespace. The API server would reload changed encryption keys within
// a minute. They are nevertheless included, because only after a restart is it certain that the API
// server uses them.
func (a Authorities) ReadAtStart(dir string) []byte {
	switch dir {
	case paths.KubeAPI:
		return slices.Concat(a.Etcd.Bundle(), a.ServiceAccountKey, encryption(a.EncryptionKeys, a.KMS))
	case paths.KubeControllers:
		return slices.Concat(a.Kubernetes.Bundle(), a.ServiceAccountKey)
	case paths.KubeNode: // a kubelet registers its Node once: a new ticket requires a restart
		if given := a.Issued[nodespec.KubeletCert]; given != nil {
			return append([]byte(pki.TicketOf(given.Cert)), a.BGPPasswords...)
		}
		return a.BGPPasswords
	}
	return nil
}

// Want is the desired state of the machine.
type Want struct {
	Dirs   []Dir
	Files  []File
	Leaves []Leaf
	// Strays are patterns (filepath.Match) of files that must not exist unless Files names them.
	Strays []string
}

// Dir is the directory of a process. Only the user of the process has access; with Shared, other
// users can read it.
type Dir struct {
	Path   string
	UID    uint32
	Shared bool
}

// mode returns the mode of the directory.
func (d Dir) mode() fs.FileMode {
	if d.Shared {
		return 0o755
	}
	return 0o700
}

// File is a file with known content.
type File struct {
	Path    string
	UID     uint32
	Mode    fs.FileMode
	Content []byte
}

// Leaf is a certificate with its key, issued on this machine.
type Leaf struct {
	Cert, Key string // paths; both mode 0400, owned by UID
	UID       uint32
	By        *pki.CA // nil: signed by its own key
	Spec      pki.Spec
}

// Plan returns the credentials that the processes of this node need.
func Plan(node nodespec.Spec, a Authorities) (Want, error) {
	endpoint, err := url.Parse(node.Endpoint)
	if err != nil {
		return Want{}, fmt.Errorf("credentials: cannot read endpoint: %w", err)
	}
	var w Want
	w.node(node, a)
	if node.Node.ControlPlane {
		w.api(node, a, endpoint.Hostname())
		w.controllers(node, a)
	}
	return w, nil
}

// CallerCAs are the CAs of the clients that apid accepts. The first three are CAs in PEM, and may
// be empty.
type CallerCAs struct {
	Operators    []byte // CAs of the operators
	Clients      []byte // CAs of the certificates that the machines issue to operators
	Machines     []byte // CAs of the cluster's machines
	Revoked      []byte // JSON, a list of trust.Revocation
	JoinRequests bool   // machines without a ticket may send join requests
	Inventory    bool   // machines without a configuration may send their inventory
}

// APIServer returns the credentials of apid: the machine's own key with a certificate, and the
// accepted callers. If given is not nil, it is the certificate. If given is nil, the machine CA of
// the cluster (ca) issues the certificate. If both are nil, the certificate is self-signed. The
// other machines of the cluster identify the machine by the same certificate.
func APIServer(identity *ecdsa.PrivateKey, name string, ips []netip.Addr, ca *pki.CA, given *pki.Leaf, callers CallerCAs) Want {
	var w Want
	yes := func(enabled bool) []byte {
		if enabled {
			return []byte("yes\n")
		}
		return nil
	}
	p := process{&w, paths.ApidDir, paths.UserApid}
	p.addDir()
	p.addFile("operator-cas.pem", callers.Operators)
	p.addFile("client-cas.pem", callers.Clients)
	p.addFile("machine-cas.pem", callers.Machines)
	p.addFile("revoked.json", callers.Revoked)
	p.addFile("join-requests", yes(callers.JoinRequests))
	p.addFile("inventory", yes(callers.Inventory))
	const cert, key = "server.crt", "server.key"
	if given != nil {
		p.addFile(key, given.KeyPEM())
		p.addFile(cert, given.CertPEM())
		return w
	}
	leaf := nodespec.MachineLeaf(name, ips)
	leaf.Key = identity
	if ca == nil {
		leaf.Usage, leaf.O = pki.Server, nil
	}
	p.addLeaf(cert, key, ca, leaf)
	return w
}

func (w *Want) node(node nodespec.Spec, a Authorities) {
	p := process{w, paths.KubeNode, 0}
	p.addDir()
	p.addFile(nodespec.CA, a.Kubernetes.Bundle())
	p.addFile(nodespec.NodeLabelsFile, a.NodeLabels)
	p.addFile(nodespec.MachineObjectsFile, a.MachineObjects)
	p.addFile(nodespec.Revoked, a.RevokedSet)
	if a.BGPPasswords != nil {
		p.addFile(nodespec.BGPPasswordsFile, a.BGPPasswords)
	}
	w.Strays = append(w.Strays, filepath.Join(p.dir, nodespec.BGPPasswordsFile))
	for _, l := range nodespec.NodeLeaves(node.Node.Name, node.Node.IPs) {
		if given := a.Issued[l.Cert]; given != nil {
			p.addFile(l.Key, given.KeyPEM())
			p.addFile(l.Cert, given.CertPEM())
		} else {
			p.addLeaf(l.Cert, l.Key, a.Kubernetes.CA, l.Spec)
		}
	}
}

// Metrics adds the files of metricsd, or the removal of its files if settings is nil. A machine
// with the key of the Kubernetes CA issues a certificate for metricsd; a worker uses the
// certificate of its kubelet, which has the same names and the same CA.
func (w *Want) Metrics(node nodespec.Spec, a Authorities, settings *nodespec.MetricsSettings, callers CallerCAs) error {
	p := process{w, paths.MetricsdDir, paths.UserMetrics}
	if settings == nil {
		w.Strays = append(w.Strays, filepath.Join(p.dir, "*"))
		return nil
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("metrics: cannot describe: %w", err)
	}
	p.addDir()
	p.addFile(nodespec.MetricsSettingsFile, append(text, '\n'))
	p.addFile(nodespec.MetricsCallerCAs, slices.Concat(callers.Operators, callers.Clients))
	p.addFile(nodespec.Revoked, a.RevokedSet)
	for _, l := range nodespec.NodeLeaves(node.Node.Name, node.Node.IPs) {
		if l.Cert != nodespec.KubeletServing {
			continue
		}
		if given := a.Issued[l.Cert]; given != nil {
			p.addFile(nodespec.MetricsdKey, given.KeyPEM())
			p.addFile(nodespec.MetricsdCert, given.CertPEM())
		} else {
			serving := pki.Spec{CN: nodespec.MetricsdCN, Usage: l.Spec.Usage, DNS: l.Spec.DNS, IPs: l.Spec.IPs}
			p.addLeaf(nodespec.MetricsdCert, nodespec.MetricsdKey, a.Kubernetes.CA, serving)
		}
	}
	return nil
}

func (w *Want) api(node nodespec.Spec, a Authorities, endpoint string) {
	p := process{w, paths.KubeAPI, paths.UserAPI}
	p.addDir()
	w.Dirs = append(w.Dirs, Dir{paths.EtcdData, p.uid, false}, Dir{paths.EtcdSnapshots, p.uid, false}, Dir{paths.Level, p.uid, true},
		Dir{paths.AuditLog, p.uid, false})
	p.addFile(nodespec.CA, a.Kubernetes.Bundle())
	p.addFile(nodespec.FrontProxyCA, a.FrontProxy.Bundle())
	p.addFile(nodespec.EtcdCA, a.Etcd.Bundle())
	p.addFile(nodespec.ServiceAccountKey, a.ServiceAccountKey)
	p.addFile(nodespec.ServiceAccountPub, a.ServiceAccountPub)
	p.addFile(nodespec.Encryption, encryption(a.EncryptionKeys, a.KMS))
	if content := a.KMS.file(); content != nil {
		p.addFile(nodespec.KMSFile, content)
	}
	w.Strays = append(w.Strays, filepath.Join(p.dir, nodespec.KMSFile))
	p.addFile(nodespec.Revoked, a.RevokedSet)
	p.addFile(nodespec.MachineObjectsFile, a.MachineObjects)
	for _, f := range a.Access.Files(p.dir) {
		p.addFile(f.Name, f.Content)
	}
	w.Strays = append(w.Strays, filepath.Join(p.dir, tokenPrefix+"*"), filepath.Join(p.dir, authorizationPrefix+"*"))

	dns := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + node.Network.DNSDomain, node.Node.Name}
	ips := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, r := range node.Network.ServiceCIDRs {
		ips = append(ips, r.Masked().Addr().Next())
	}
	ips = append(append(ips, node.Node.IPs...), node.VirtualAddresses...)
	for _, name := range append([]string{endpoint}, node.Kubernetes.APIServer.ExtraSANs...) {
		if ip, err := netip.ParseAddr(name); err == nil {
			ips = append(ips, ip)
		} else {
			dns = append(dns, name)
		}
	}
	p.addLeaf(nodespec.APIServerCert, nodespec.APIServerKey, a.Kubernetes.CA, pki.Spec{CN: "kube-apiserver", Usage: pki.Server, DNS: pki.Distinct(dns), IPs: pki.Distinct(ips)})
	p.addLeaf(nodespec.KubeletClientCert, nodespec.KubeletClientKey, a.Kubernetes.CA, client("kube-apiserver-kubelet-client"))
	p.addLeaf(nodespec.FrontProxyCert, nodespec.FrontProxyKey, a.FrontProxy.CA, client("front-proxy-client"))
	peer := pki.Spec{CN: node.Node.Name, Usage: pki.Both, DNS: []string{"localhost", node.Node.Name}, IPs: pki.Distinct(append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, node.Node.IPs...))}
	p.addLeaf(nodespec.EtcdPeerCert, nodespec.EtcdPeerKey, a.Etcd.CA, peer)
}

func (w *Want) controllers(node nodespec.Spec, a Authorities) {
	p := process{w, paths.KubeControllers, paths.UserControllers}
	p.addDir()
	p.addFile(nodespec.CA, a.Kubernetes.Bundle())
	p.addFile(nodespec.SigningCA, a.Kubernetes.CertPEM())
	p.addFile(nodespec.CAKey, a.Kubernetes.KeyPEM())
	p.addFile(nodespec.FrontProxyCA, a.FrontProxy.Bundle())
	p.addFile(nodespec.ServiceAccountKey, a.ServiceAccountKey)
	p.addFile(nodespec.Addons, a.Addons)
	p.addFile(nodespec.MachineObjectsFile, a.MachineObjects)
	p.addLeaf(nodespec.ControllersCert, nodespec.ControllersKey, a.Kubernetes.CA, client("system:kube-controller-manager"))
	p.addLeaf(nodespec.SchedulerCert, nodespec.SchedulerKey, a.Kubernetes.CA, client("system:kube-scheduler"))
	serving := pki.Spec{CN: "controllers", Usage: pki.Server, DNS: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	p.addLeaf(nodespec.ControllersServing, nodespec.ControllersServingK, a.Kubernetes.CA, serving)
	p.addLeaf(nodespec.MetricsCert, nodespec.MetricsKey, a.Kubernetes.CA, client(nodespec.MetricsUser))
	metrics := pki.Spec{CN: nodespec.MetricsHost, Usage: pki.Server, DNS: []string{nodespec.MetricsHost}}
	p.addLeaf(nodespec.AddonsCert, nodespec.AddonsKey, a.Kubernetes.CA, client(nodespec.AddonsUser))
	p.addLeaf(nodespec.MetricsServing, nodespec.MetricsServingKey, a.Kubernetes.CA, metrics)
}

// process collects the content of one directory.
type process struct {
	w   *Want
	dir string
	uid uint32
}

func (p process) addDir() { p.w.Dirs = append(p.w.Dirs, Dir{p.dir, p.uid, false}) }

func (p process) addFile(name string, content []byte) {
	p.w.Files = append(p.w.Files, File{filepath.Join(p.dir, name), p.uid, 0o400, content})
}

func (p process) addLeaf(cert, key string, by *pki.CA, spec pki.Spec) {
	spec.TTL, spec.Backdate = leafTTL, nodespec.LeafBackdate
	p.w.Leaves = append(p.w.Leaves, Leaf{filepath.Join(p.dir, cert), filepath.Join(p.dir, key), p.uid, by, spec})
}

func client(cn string, groups ...string) pki.Spec {
	return pki.Spec{CN: cn, O: groups, Usage: pki.Client}
}
