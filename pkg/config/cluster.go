package config

import (
	"net/netip"
	"slices"
	"time"
)

// Cluster is the document of the machine's Kubernetes cluster.
type Cluster struct {
	// Metadata names the cluster.
	Metadata Metadata `yaml:"metadata" jsonschema:"required"`
	// Spec describes the cluster.
	Spec ClusterSpec `yaml:"spec" jsonschema:"required"`
}

// ClusterSpec describes a cluster. It is the same on every machine of the cluster.
type ClusterSpec struct {
	// Endpoint is the URL of the Kubernetes API for clients outside the machine: https://host:port.
	Endpoint Endpoint `yaml:"endpoint" jsonschema:"required"`
	// ControlPlanes are the addresses of the cluster's control-plane machines, at most 16, the same
	// list on all machines; optional with a single control-plane machine. Each is an etcd member:
	// the first machine bootstraps etcd if no other has data, all others join. Node components
	// connect to any ready API server in the list, on port 6443, a control-plane machine to its own
	// first, and to the endpoint last. Machines sync revocations (`orlopctl trust revoke`) from
	// these machines and trust their answers, so only machines with the cluster's keys may be
	// listed.
	ControlPlanes []netip.Addr `yaml:"controlPlanes,omitempty"`
	// VirtualAddresses are addresses of the Kubernetes API, at port 6443, that belong to no
	// machine. One control-plane machine with a ready API server holds each address and answers by
	// ARP and NDP; another takes over within 5 seconds. At most one per address family, in the
	// machines' own network, and otherwise unused. Kubeconfig files contain the first.
	VirtualAddresses []netip.Addr `yaml:"virtualAddresses,omitempty"`
	// JoinRequests permits machines without a ticket to request to join as workers. Control-plane
	// machines accept the requests on port 50000 without a client certificate, at most 64 at a
	// time; an operator decides by the fingerprint on the console (`orlopctl nodes pending`).
	// Without it, a worker needs a ticket.
	JoinRequests bool `yaml:"joinRequests,omitempty"`
	// Networks are the address ranges and the DNS domain inside the cluster.
	Networks ClusterNetworks `yaml:"networks"`
	// External are components that are replaced, for example by an add-on. The built-in component
	// does not run and leaves no state. For network, the replacement connects pods and enforces
	// network policies; it writes its CNI configuration to /etc/cni/net.d and its plugins to
	// /opt/cni/bin. A change of network takes effect at a reboot.
	External []ExternalComponent `yaml:"external,omitempty"`
	// DNS configures how the cluster's DNS resolves names outside the cluster.
	DNS ClusterDNS `yaml:"dns"`
	// PKI holds the cluster's CAs. The machine issues leaf certificates from them.
	PKI PKI `yaml:"pki" jsonschema:"required"`
	// SecretsEncryptionKey encrypts Secret objects in etcd (XSalsa20-Poly1305): 32 random bytes in
	// base64. Required on a control plane.
	SecretsEncryptionKey EncryptionKey `yaml:"secretsEncryptionKey,omitempty"`
	// AcceptedEncryptionKeys are further keys for reading Secrets, at most 4: the next key before
	// it encrypts, and the previous key while Secrets are encrypted by it (`orlopctl trust
	// rotate-key`). A machine removes a key after it has re-encrypted all Secrets that used it.
	AcceptedEncryptionKeys []EncryptionKey `yaml:"acceptedEncryptionKeys,omitempty"`
	// Etcd configures the storage of the cluster's data.
	Etcd Etcd `yaml:"etcd"`
	// LocalVolumes configures volumes on the machines' own disks.
	LocalVolumes LocalVolumes `yaml:"localVolumes"`
	// PodCertificates configures certificates for authentication between pods.
	PodCertificates PodCertificates `yaml:"podCertificates"`
	// Kubernetes configures the components of Kubernetes.
	Kubernetes Kubernetes `yaml:"kubernetes"`
}

// EncryptionKeys returns the keys of Secrets, the encrypting key first; none on a worker.
func (c ClusterSpec) EncryptionKeys() []EncryptionKey {
	if c.SecretsEncryptionKey.IsZero() {
		return nil
	}
	return append([]EncryptionKey{c.SecretsEncryptionKey}, c.AcceptedEncryptionKeys...)
}

// Etcd configures the storage of the cluster's data.
type Etcd struct {
	// Snapshots are taken by each control-plane machine independently, on its own disk. They
	// protect against mistakes, and against the loss of the machine only if they are copied
	// elsewhere (target, or `orlopctl etcd snapshot`).
	Snapshots Snapshots `yaml:"snapshots"`
}

// LocalVolumes configures volumes of PersistentVolumeClaims on the machines' own disks, in DATA.
type LocalVolumes struct {
	// Enabled provides the StorageClass orlop-local, the default class, with its provisioner.
	Enabled bool `yaml:"enabled"`
	// Reserve is the space of each machine's DATA that is not available for volumes, in addition to
	// the 15 % that stay free to prevent pod evictions: for images, logs, the cluster's data and
	// the pods' own files; at least 256MiB. The default is a quarter of DATA, at most 20GiB or a
	// tenth, whichever is larger.
	Reserve Bytes `yaml:"reserve,omitempty"`
}

// PodCertificates configures certificates for authentication between pods.
type PodCertificates struct {
	// Enabled provides the signer orlop.dev/pods for projected volumes of pods: the certificate
	// contains the pod's service account as a SPIFFE ID; the volume also contains the trusted CAs.
	// It requires two unfinished upstream APIs (certificates.k8s.io/v1beta1: PodCertificateRequest,
	// ClusterTrustBundle).
	Enabled bool `yaml:"enabled"`
}

// ClusterNetworks are the address ranges and the DNS domain inside the cluster. Ranges must not
// overlap each other or the machine's own networks.
type ClusterNetworks struct {
	// Pods are the ranges for pod addresses: one per address family, IPv4 from /8 to /24, IPv6 from
	// /48 to /64. Each machine gets a /24 or /64.
	Pods []netip.Prefix `yaml:"pods"`
	// Services are the ranges for Service addresses, one per address family, in the same order as
	// pods. The first address belongs to the API server, the tenth to the cluster's DNS.
	Services []netip.Prefix `yaml:"services"`
	// Domain is the DNS domain of the cluster.
	Domain string `yaml:"domain"`
	// Encapsulation is the transport of packets between pods of different machines. It must be the
	// same on all machines.
	Encapsulation Encapsulation `yaml:"encapsulation"`
	// LoadBalancer configures the addresses of Services of type LoadBalancer.
	LoadBalancer LoadBalancer `yaml:"loadBalancer"`
	// ExternalIPs are the permitted values of the Service field externalIPs: networks, or the first
	// and the last address with a dash, at most 65536 addresses each. Without ranges, the API
	// server rejects the field and the service proxy ignores it; otherwise the author of a Service
	// could take over any address. A router outside the cluster must route the addresses to the
	// machines.
	ExternalIPs []AddressRange `yaml:"externalIPs,omitempty"`
}

// Encapsulation is a transport of packets between pods.
type Encapsulation string

// Encapsulations: encrypted (UDP port 51820), unencrypted (UDP port 8472), and plain routing
// between machines on one network.
const (
	EncapsulationWireGuard Encapsulation = "wireguard"
	EncapsulationVXLAN     Encapsulation = "vxlan"
	EncapsulationNone      Encapsulation = "none"
)

// Names returns the encapsulations.
func (Encapsulation) Names() []string {
	return []string{string(EncapsulationWireGuard), string(EncapsulationVXLAN), string(EncapsulationNone)}
}

// ExternalComponent is a component of the cluster that can be replaced.
type ExternalComponent string

// Replaceable components: the service proxy, the cluster's DNS, and the pod network with its
// network policies.
const (
	PartProxy   ExternalComponent = "proxy"
	PartDNS     ExternalComponent = "dns"
	PartNetwork ExternalComponent = "network"
)

// Names returns the components.
func (ExternalComponent) Names() []string {
	return []string{string(PartProxy), string(PartDNS), string(PartNetwork)}
}

// HasExternal reports whether a component is replaced.
func (s *ClusterSpec) HasExternal(part ExternalComponent) bool {
	return slices.Contains(s.External, part)
}

// PKI holds the cluster's CAs. Each must have its own key, so that no CA can issue certificates of
// another.
type PKI struct {
	// Kubernetes signs the certificates of the Kubernetes API and of its clients.
	Kubernetes CertKey `yaml:"kubernetes"`
	// Etcd signs only the certificates of etcd's peers and clients.
	Etcd CertKey `yaml:"etcd"`
	// FrontProxy signs the API server's client certificate for aggregated API servers.
	FrontProxy CertKey `yaml:"frontProxy"`
	// Machine signs the server certificates of the machines' own API.
	Machine CertKey `yaml:"machine"`
	// Client signs the client certificates that machines issue to operators (Trust.Issue,
	// Trust.Renew), in addition to the operators' own CAs. A machine without its key issues none; a
	// machine without its certificate accepts none.
	Client CertKey `yaml:"client,omitempty"`
	// ServiceAccountKey signs the tokens of service accounts: a private key (ECDSA on P-256) in
	// PEM.
	ServiceAccountKey PrivateKey `yaml:"serviceAccountKey,omitempty"`
	// Accepted are further trusted CAs that issue no certificates. They make it possible to replace
	// a CA without rejected connections (`orlopctl trust rotate-ca`).
	Accepted Accepted `yaml:"accepted"`
}

// Accepted are trusted CAs that do not issue: the next CA before it issues, and the previous CA
// while its certificates are in use.
type Accepted struct {
	// Kubernetes are trusted like pki.kubernetes.
	Kubernetes []Certificate `yaml:"kubernetes,omitempty"`
	// Etcd are trusted like pki.etcd.
	Etcd []Certificate `yaml:"etcd,omitempty"`
	// FrontProxy are trusted like pki.frontProxy.
	FrontProxy []Certificate `yaml:"frontProxy,omitempty"`
	// Machine are trusted like pki.machine.
	Machine []Certificate `yaml:"machine,omitempty"`
	// Client are trusted like pki.client.
	Client []Certificate `yaml:"client,omitempty"`
}

// CertKey is a certificate with its private key.
type CertKey struct {
	// Cert is the certificate, in PEM.
	Cert Certificate `yaml:"cert,omitempty"`
	// Key is the certificate's private key, in PEM (PKCS #8 or SEC 1), not encrypted. A CA's key is
	// ECDSA on P-256.
	Key PrivateKey `yaml:"key,omitempty"`
}

// IsZero reports whether both are missing.
func (c CertKey) IsZero() bool { return c.Cert.IsZero() && c.Key.IsZero() }

// Kubernetes configures the components of Kubernetes.
type Kubernetes struct {
	// AllowSchedulingOnControlPlane permits ordinary pods on control-plane machines. False sets the
	// standard taint.
	AllowSchedulingOnControlPlane bool `yaml:"allowSchedulingOnControlPlane"`
	// MaxPods is the maximum number of pods on a machine, 1 to 253: the addresses of the machine's
	// /24.
	MaxPods int `yaml:"maxPods" jsonschema:"minimum=1,maximum=253"`
	// FinishedPods is the number of finished pods that the cluster retains for inspection, 1 to
	// 100000. The oldest are deleted first.
	FinishedPods int `yaml:"finishedPods" jsonschema:"minimum=1,maximum=100000"`
	// PodEvictionTimeout is the time after which pods are evicted from a machine that is lost (50
	// seconds after its last heartbeat) or not ready: whole seconds, 10s to 24h. It applies to new
	// pods without their own tolerations of node.kubernetes.io/not-ready and unreachable.
	PodEvictionTimeout Duration `yaml:"podEvictionTimeout"`
	// APIServer configures the API server.
	APIServer APIServer `yaml:"apiServer"`
	// Kubelet restricts access to the kubelets.
	Kubelet Kubelet `yaml:"kubelet"`
	// PodSecurity is the cluster-wide Pod Security admission.
	PodSecurity PodSecurity `yaml:"podSecurity"`
	// Audit limits the size of the Kubernetes audit log on disk. The log is always enabled.
	Audit Audit `yaml:"audit"`
	// Authentication adds authenticators for users and programs.
	Authentication Authentication `yaml:"authentication"`
	// Authorization adds authorization services.
	Authorization Authorization `yaml:"authorization"`
}

// APIServer configures the API server.
type APIServer struct {
	// ExtraSANs are additional host names and addresses in the API server's certificate. The
	// endpoint, the machine's name and addresses and the Service's names are always included.
	// Workers must have none of these addresses.
	ExtraSANs []string `yaml:"extraSANs,omitempty"`
	// EventTTL is the time for which Events are stored, 1m to 168h.
	EventTTL Duration `yaml:"eventTTL"`
}

// Kubelet restricts access to the kubelets' port, 10250, by clients other than the API server. Each
// client also needs a certificate or a token.
type Kubelet struct {
	// ClosedToPods blocks connections from pods to the kubelets of all machines. False permits
	// them, as a Prometheus or a metrics-server in the cluster requires. A pod with hostNetwork
	// uses the machine's network and is not blocked.
	ClosedToPods bool `yaml:"closedToPods"`
	// OpenToNamespaces are namespaces with pods that can connect to the kubelets in spite of
	// closedToPods, at most 64.
	OpenToNamespaces []string `yaml:"openToNamespaces,omitempty"`
}

// PodSecurity is the cluster-wide Pod Security admission. The labels of a namespace take
// precedence.
type PodSecurity struct {
	// Default is the enforced level for namespaces without labels.
	Default PodSecurityLevel `yaml:"default"`
	// ExemptNamespaces are not checked.
	ExemptNamespaces []string `yaml:"exemptNamespaces"`
}

// PodSecurityLevel is a level of the Pod Security Standards.
type PodSecurityLevel string

// The levels.
const (
	PodSecurityPrivileged PodSecurityLevel = "privileged"
	PodSecurityBaseline   PodSecurityLevel = "baseline"
	PodSecurityRestricted PodSecurityLevel = "restricted"
)

// Names returns the levels.
func (PodSecurityLevel) Names() []string {
	return []string{string(PodSecurityBaseline), string(PodSecurityPrivileged), string(PodSecurityRestricted)}
}

// Audit limits the size of the audit log on disk.
type Audit struct {
	// MaxFileSize is the size at which a new file begins: whole MiB, 1MiB to 1GiB.
	MaxFileSize Bytes `yaml:"maxFileSize"`
	// MaxFiles is the number of retained old files, 1 to 100. They are compressed.
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
