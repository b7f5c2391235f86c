package config

import (
	"net/netip"
	"slices"
	"time"
)

// Cluster is the document of the Kubernetes cluster that the machine belongs to.
type Cluster struct {
	// Metadata names the cluster.
	Metadata Metadata `yaml:"metadata" jsonschema:"required"`
	// Spec says what the cluster should be.
	Spec ClusterSpec `yaml:"spec" jsonschema:"required"`
}

// ClusterSpec says what the cluster should be. It is the same on every machine of the cluster.
type ClusterSpec struct {
	// Endpoint is the URL of the Kubernetes API for everyone outside the machine:
	// https://host:port.
	Endpoint Endpoint `yaml:"endpoint" jsonschema:"required"`
	// ControlPlanes are the addresses of the cluster's control-plane machines, at most 16, the same
	// list on all of them; a single one may leave it out. Each is a member of etcd: the first
	// begins when none of the others has data, everyone else joins. Machines reach the API server
	// there, on port 6443, whichever works, a control-plane machine its own first; the endpoint is
	// the last that they try. Machines learn from them what was revoked (`orlopctl trust revoke`),
	// also when they were away then. Only machines that hold the cluster's keys belong here: what
	// they say is believed.
	ControlPlanes []netip.Addr `yaml:"controlPlanes,omitempty"`
	// VirtualAddresses are addresses of the Kubernetes API, at port 6443, that no machine has: one
	// control-plane machine whose API server is ready answers for each at a time, by ARP and NDP,
	// and another one within 5 seconds when it is not any more. At most one per address family, of
	// the machines' own network, and in use by nobody else. Kubeconfig files name the first one.
	VirtualAddresses []netip.Addr `yaml:"virtualAddresses,omitempty"`
	// JoinRequests lets machines without a ticket ask to become workers: control-plane machines
	// take their request at port 50000 without a client certificate, at most 64 at a time, and an
	// operator decides by the fingerprint on the console (`orlopctl nodes pending`). Otherwise a
	// worker comes by a ticket alone.
	JoinRequests bool `yaml:"joinRequests,omitempty"`
	// Networks are the address ranges and the DNS domain inside the cluster.
	Networks ClusterNetworks `yaml:"networks"`
	// External are parts of the cluster that something else in it supplies, such as an add-on.
	// Orlop's own do not run, and leave nothing behind. With network, pods are connected, and
	// network policies enforced, by what writes its CNI configuration into /etc/cni/net.d of the
	// machine and its plugins into /opt/cni/bin; a machine takes to that, or back, by a start.
	External []ExternalComponent `yaml:"external,omitempty"`
	// DNS says whom the cluster's DNS asks about names outside the cluster.
	DNS ClusterDNS `yaml:"dns"`
	// PKI holds the cluster's authorities. Leaf certificates are issued from them on the machine.
	PKI PKI `yaml:"pki" jsonschema:"required"`
	// SecretsEncryptionKey encrypts Secret objects at rest (XSalsa20-Poly1305): 32 random bytes in
	// base64. A control plane needs it.
	SecretsEncryptionKey EncryptionKey `yaml:"secretsEncryptionKey,omitempty"`
	// AcceptedEncryptionKeys are further keys that Secrets may be sealed by, at most 4: the next
	// one before it seals, and the one before while Secrets are sealed by it. With them the key is
	// replaced: `orlopctl trust rotate-key`. A machine lets go of one when it has written all
	// Secrets again that were sealed by it.
	AcceptedEncryptionKeys []EncryptionKey `yaml:"acceptedEncryptionKeys,omitempty"`
	// Etcd says how the cluster's data are kept.
	Etcd Etcd `yaml:"etcd"`
	// LocalVolumes are volumes of claims on the machines' own disks.
	LocalVolumes LocalVolumes `yaml:"localVolumes"`
	// PodCertificates are certificates by which pods know each other.
	PodCertificates PodCertificates `yaml:"podCertificates"`
	// Kubernetes tunes the components.
	Kubernetes Kubernetes `yaml:"kubernetes"`
}

// EncryptionKeys are the keys of Secrets, the one that seals first; none on a worker.
func (c ClusterSpec) EncryptionKeys() []EncryptionKey {
	if c.SecretsEncryptionKey.IsZero() {
		return nil
	}
	return append([]EncryptionKey{c.SecretsEncryptionKey}, c.AcceptedEncryptionKeys...)
}

// Etcd says how the cluster's data are kept.
type Etcd struct {
	// Snapshots are taken by each control-plane machine by itself, and lie on its own disk: they
	// help against a mistake, and against the loss of the machine only if they are sent elsewhere
	// (target, or `orlopctl etcd snapshot`).
	Snapshots Snapshots `yaml:"snapshots"`
}

// LocalVolumes are volumes of claims on the machines' own disks, in DATA.
type LocalVolumes struct {
	// Enabled says whether there are any: the StorageClass orlop-local, the default of claims that
	// name none, and what serves it.
	Enabled bool `yaml:"enabled"`
	// Reserve is what is not promised to volumes of each machine's DATA, beside the 15 % that stay
	// free so that no pods are put out: for images, logs, the cluster's data and the pods' own
	// files; at least 256MiB. By default it is a quarter of DATA, at most 20GiB or a tenth,
	// whichever is more.
	Reserve Bytes `yaml:"reserve,omitempty"`
}

// PodCertificates are certificates by which pods know each other.
type PodCertificates struct {
	// Enabled says whether there are any: a pod's projected volume gets one of the signer
	// orlop.dev/pods, which says the pod's service account as a SPIFFE ID, and the signers to
	// believe. It takes two APIs that upstream has not finished (certificates.k8s.io/v1beta1:
	// PodCertificateRequest, ClusterTrustBundle).
	Enabled bool `yaml:"enabled"`
}

// ClusterNetworks are the address ranges and the DNS domain inside the cluster. No range may
// overlap another one, or the machine's own networks.
type ClusterNetworks struct {
	// Pods are the ranges that pods take their addresses from: one per address family, IPv4 from /8
	// to /24, IPv6 from /48 to /64. Each machine gets a /24 or /64 of them.
	Pods []netip.Prefix `yaml:"pods"`
	// Services are the ranges of service addresses, one per address family, in the same order as
	// pods. The first address is the API server's, the tenth the cluster DNS's.
	Services []netip.Prefix `yaml:"services"`
	// Domain is the DNS domain of the cluster.
	Domain string `yaml:"domain"`
	// Encapsulation is how packets between pods of different machines cross the network. Machines
	// that say different things do not reach each other's pods.
	Encapsulation Encapsulation `yaml:"encapsulation"`
	// LoadBalancer says which addresses Services of type LoadBalancer get.
	LoadBalancer LoadBalancer `yaml:"loadBalancer"`
	// ExternalIPs are the addresses that Services may name in their field externalIPs, each a
	// network or the first and the last address with a dash between, at most 65536 in each. Without
	// any, no Service may, and the service proxy makes nothing of the field: who may write a
	// Service could otherwise take any address for itself. Something outside the cluster leads the
	// addresses to the machines.
	ExternalIPs []AddressRange `yaml:"externalIPs,omitempty"`
}

// Encapsulation is how packets between pods cross the network.
type Encapsulation string

// The ways: encrypted (UDP port 51820), in the clear (UDP port 8472), and as they are, by routes,
// among machines on one network.
const (
	EncapsulationWireGuard Encapsulation = "wireguard"
	EncapsulationVXLAN     Encapsulation = "vxlan"
	EncapsulationNone      Encapsulation = "none"
)

// Names lists the ways.
func (Encapsulation) Names() []string {
	return []string{string(EncapsulationWireGuard), string(EncapsulationVXLAN), string(EncapsulationNone)}
}

// ExternalComponent is a part of the cluster that can be replaced.
type ExternalComponent string

// The parts: what makes Services reachable, the DNS that pods are told to ask, and what connects
// pods and says who may reach whom.
const (
	PartProxy   ExternalComponent = "proxy"
	PartDNS     ExternalComponent = "dns"
	PartNetwork ExternalComponent = "network"
)

// Names lists the parts.
func (ExternalComponent) Names() []string {
	return []string{string(PartProxy), string(PartDNS), string(PartNetwork)}
}

// HasExternal says whether something else supplies a part.
func (s *ClusterSpec) HasExternal(part ExternalComponent) bool {
	return slices.Contains(s.External, part)
}

// PKI holds the cluster's authorities. Each must have a key of its own, so that none can speak for
// another.
type PKI struct {
	// Kubernetes signs the certificates of the Kubernetes API and of its clients.
	Kubernetes CertKey `yaml:"kubernetes"`
	// Etcd signs the certificates of etcd's peers and clients, and nothing else.
	Etcd CertKey `yaml:"etcd"`
	// FrontProxy signs the client certificate that the API server shows to aggregated API servers.
	FrontProxy CertKey `yaml:"frontProxy"`
	// Machine signs the server certificates of the machines' own API.
	Machine CertKey `yaml:"machine"`
	// Client signs the client certificates that the machines issue to operators (Trust.Issue,
	// Trust.Renew), beside those of the operators' own CAs. A machine without its key issues none;
	// one without its certificate accepts none.
	Client CertKey `yaml:"client,omitempty"`
	// ServiceAccountKey signs the tokens of service accounts: a private key (ECDSA on P-256) in
	// PEM.
	ServiceAccountKey PrivateKey `yaml:"serviceAccountKey,omitempty"`
	// Accepted are further authorities that are believed as the ones above are, and issue nothing.
	// With them an authority is replaced without anybody being refused: `orlopctl trust rotate-ca`.
	Accepted Accepted `yaml:"accepted"`
}

// Accepted are authorities that are believed beside those that issue: the next one before it
// issues, and the one before while certificates of it are in use.
type Accepted struct {
	// Kubernetes are accepted as pki.kubernetes is.
	Kubernetes []Certificate `yaml:"kubernetes,omitempty"`
	// Etcd are accepted as pki.etcd is.
	Etcd []Certificate `yaml:"etcd,omitempty"`
	// FrontProxy are accepted as pki.frontProxy is.
	FrontProxy []Certificate `yaml:"frontProxy,omitempty"`
	// Machine are accepted as pki.machine is.
	Machine []Certificate `yaml:"machine,omitempty"`
	// Client are accepted as pki.client is.
	Client []Certificate `yaml:"client,omitempty"`
}

// CertKey is a certificate with its private key.
type CertKey struct {
	// Cert is the certificate, in PEM.
	Cert Certificate `yaml:"cert,omitempty"`
	// Key is the certificate's private key, in PEM (PKCS #8 or SEC 1), not encrypted. An
	// authority's is ECDSA on P-256.
	Key PrivateKey `yaml:"key,omitempty"`
}

// IsZero says that neither is given.
func (c CertKey) IsZero() bool { return c.Cert.IsZero() && c.Key.IsZero() }

// Kubernetes tunes the components.
type Kubernetes struct {
	// AllowSchedulingOnControlPlane lets ordinary pods run on control-plane machines. False puts
	// the usual taint on them.
	AllowSchedulingOnControlPlane bool `yaml:"allowSchedulingOnControlPlane"`
	// MaxPods is the number of pods a machine takes, 1 to 253: the addresses of the machine's /24.
	MaxPods int `yaml:"maxPods" jsonschema:"minimum=1,maximum=253"`
	// FinishedPods is the number of pods that have ended and are kept to be looked at, in the whole
	// cluster, 1 to 100000. The oldest go first.
	FinishedPods int `yaml:"finishedPods" jsonschema:"minimum=1,maximum=100000"`
	// PodEvictionTimeout is how long pods that do not say it themselves (their tolerations of
	// node.kubernetes.io/not-ready and unreachable) stay on a machine once the control plane takes
	// it for lost, 50 seconds after its last sign of life, or knows that it is not ready: whole
	// seconds, 10s to 24h. It counts for pods that are made from then on.
	PodEvictionTimeout Duration `yaml:"podEvictionTimeout"`
	// APIServer tunes the API server.
	APIServer APIServer `yaml:"apiServer"`
	// Kubelet says who reaches the kubelets.
	Kubelet Kubelet `yaml:"kubelet"`
	// PodSecurity is the cluster-wide Pod Security admission.
	PodSecurity PodSecurity `yaml:"podSecurity"`
	// Audit bounds the audit log of the Kubernetes API on disk. The log itself is always on.
	Audit Audit `yaml:"audit"`
	// Authentication adds ways for people and programs to prove who they are.
	Authentication Authentication `yaml:"authentication"`
	// Authorization adds services that are asked what a caller may do.
	Authorization Authorization `yaml:"authorization"`
}

// APIServer tunes the API server.
type APIServer struct {
	// ExtraSANs are host names and addresses that the API server's certificate is also valid for.
	// The endpoint, the machine's name and addresses and the service's names are always in it. No
	// worker may have one of these addresses.
	ExtraSANs []string `yaml:"extraSANs,omitempty"`
	// EventTTL is how long Events are kept, 1m to 168h.
	EventTTL Duration `yaml:"eventTTL"`
}

// Kubelet says who reaches the kubelets' port, 10250, beside the API server. Whoever reaches it
// still needs a certificate or a token.
type Kubelet struct {
	// ClosedToPods keeps pods from the kubelets of all machines. False leaves the port open to
	// them, as a Prometheus or a metrics-server in the cluster needs it. A pod with hostNetwork is
	// the machine itself, and is not kept from it.
	ClosedToPods bool `yaml:"closedToPods"`
	// OpenToNamespaces are namespaces whose pods reach the kubelets although closedToPods keeps all
	// others from them, at most 64.
	OpenToNamespaces []string `yaml:"openToNamespaces,omitempty"`
}

// PodSecurity is the cluster-wide Pod Security admission. A namespace's own labels come before it.
type PodSecurity struct {
	// Default is the level that is enforced where a namespace says nothing.
	Default PodSecurityLevel `yaml:"default"`
	// ExemptNamespaces are not checked at all.
	ExemptNamespaces []string `yaml:"exemptNamespaces"`
}

// PodSecurityLevel is one of the Pod Security Standards.
type PodSecurityLevel string

// The levels.
const (
	PodSecurityPrivileged PodSecurityLevel = "privileged"
	PodSecurityBaseline   PodSecurityLevel = "baseline"
	PodSecurityRestricted PodSecurityLevel = "restricted"
)

// Names lists the levels.
func (PodSecurityLevel) Names() []string {
	return []string{string(PodSecurityBaseline), string(PodSecurityPrivileged), string(PodSecurityRestricted)}
}

// Audit bounds the audit log on disk.
type Audit struct {
	// MaxFileSize is the size at which a new file is begun: whole MiB, 1MiB to 1GiB.
	MaxFileSize Bytes `yaml:"maxFileSize"`
	// MaxFiles is the number of old files that are kept, 1 to 100. They are compressed.
	MaxFiles int `yaml:"maxFiles" jsonschema:"minimum=1,maximum=100"`
}

func (c *Cluster) defaults() {
	c.Spec.Networks = ClusterNetworks{
		Pods:          []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 0, 0}), 16)},
		Services:      []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, 0, 0}), 12)},
		Domain:        "cluster.local",
		Encapsulation: EncapsulationWireGuard,
	}
	c.Spec.DNS.CacheTTL = Duration(30 * time.Second)
	c.Spec.Etcd.Snapshots = defaultSnapshots()
	c.Spec.LocalVolumes.Enabled = true
	c.Spec.Kubernetes = Kubernetes{
		AllowSchedulingOnControlPlane: true,
		MaxPods:                       110,
		FinishedPods:                  1000,
		PodEvictionTimeout:            Duration(5 * time.Minute),
		APIServer:                     APIServer{EventTTL: Duration(time.Hour)},
		PodSecurity:                   PodSecurity{Default: PodSecurityBaseline, ExemptNamespaces: []string{"kube-system"}},
		Audit:                         Audit{MaxFileSize: 100 << 20, MaxFiles: 10},
	}
}
