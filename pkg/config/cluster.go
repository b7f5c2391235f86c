package config

import (
	"net/netip"
	"slices"
	"time"
)

// Cluster is the document of the machine's Kubernetes cluster.
type Cluster struct {
	Metadata Metadata    `yaml:"metadata" jsonschema:"required"`
	Spec     ClusterSpec `yaml:"spec" jsonschema:"required"`
}

// ClusterSpec describes a cluster. Its values are the same on every machine of the cluster, but a
// worker has only some of the fields (IsWorkerField).
type ClusterSpec struct {
	Endpoint               Endpoint            `yaml:"endpoint" jsonschema:"required"`
	ControlPlanes          []netip.Addr        `yaml:"controlPlanes,omitempty"`
	VirtualAddresses       []netip.Addr        `yaml:"virtualAddresses,omitempty"`
	JoinRequests           bool                `yaml:"joinRequests,omitempty"`
	Networks               ClusterNetworks     `yaml:"networks"`
	External               []ExternalComponent `yaml:"external,omitempty"`
	DNS                    ClusterDNS          `yaml:"dns"`
	PKI                    PKI                 `yaml:"pki" jsonschema:"required"`
	SecretsEncryptionKey   EncryptionKey       `yaml:"secretsEncryptionKey,omitempty"`
	AcceptedEncryptionKeys []EncryptionKey     `yaml:"acceptedEncryptionKeys,omitempty"`
	Etcd                   Etcd                `yaml:"etcd"`
	LocalVolumes           LocalVolumes        `yaml:"localVolumes"`
	PodCertificates        PodCertificates     `yaml:"podCertificates"`
	Kubernetes             Kubernetes          `yaml:"kubernetes"`
}

// EncryptionKeys returns the keys that decrypt Secrets in etcd. The first one also encrypts. A
// worker has none.
func (c ClusterSpec) EncryptionKeys() []EncryptionKey {
	if c.SecretsEncryptionKey.IsZero() {
		return nil
	}
	return append([]EncryptionKey{c.SecretsEncryptionKey}, c.AcceptedEncryptionKeys...)
}

// Etcd configures the storage of the cluster's data.
type Etcd struct {
	Snapshots Snapshots `yaml:"snapshots"`
}

// LocalVolumes configures the volumes that machines provide for PersistentVolumeClaims on their own
// disks, in DATA.
type LocalVolumes struct {
	Enabled bool  `yaml:"enabled"`
	Reserve Bytes `yaml:"reserve,omitempty"`
}

// PodCertificates configures certificates for authentication between pods.
type PodCertificates struct {
	Enabled bool `yaml:"enabled"`
}

// ClusterNetworks are the address ranges and the DNS domain inside the cluster. The ranges must not
// overlap each other or the networks of the machine's links.
type ClusterNetworks struct {
	Pods          []netip.Prefix `yaml:"pods"`
	Services      []netip.Prefix `yaml:"services"`
	Domain        string         `yaml:"domain"`
	Encapsulation Encapsulation  `yaml:"encapsulation"`
	LoadBalancer  LoadBalancer   `yaml:"loadBalancer"`
	ExternalIPs   []AddressRange `yaml:"externalIPs,omitempty"`
	// AnnounceAPI is how VirtualAddresses are announced.
	AnnounceAPI Announcement `yaml:"announceAPI"`
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

// ExternalComponent is a component of the cluster that the operator can replace by another product.
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

// HasExternal reports whether a component is replaced (External).
func (s *ClusterSpec) HasExternal(part ExternalComponent) bool {
	return slices.Contains(s.External, part)
}

// PKI holds the cluster's CAs. Each CA must have its own key, so that no CA can issue certificates
// of another CA.
type PKI struct {
	Kubernetes        CertKey    `yaml:"kubernetes"`
	Etcd              CertKey    `yaml:"etcd"`
	FrontProxy        CertKey    `yaml:"frontProxy"`
	Machine           CertKey    `yaml:"machine"`
	Client            CertKey    `yaml:"client,omitempty"`
	ServiceAccountKey PrivateKey `yaml:"serviceAccountKey,omitempty"`
	Accepted          Accepted   `yaml:"accepted"`
}

// Accepted are CAs that are trusted but do not issue certificates. During a rotation, these are the
// next CA until it issues certificates, and then the previous CA while its certificates are in use.
type Accepted struct {
	Kubernetes []Certificate `yaml:"kubernetes,omitempty"`
	Etcd       []Certificate `yaml:"etcd,omitempty"`
	FrontProxy []Certificate `yaml:"frontProxy,omitempty"`
	Machine    []Certificate `yaml:"machine,omitempty"`
	Client     []Certificate `yaml:"client,omitempty"`
}

// CertKey is a certificate with its private key.
type CertKey struct {
	Cert Certificate `yaml:"cert,omitempty"`
	Key  PrivateKey  `yaml:"key,omitempty"`
}

// IsZero reports whether the certificate and the key are missing.
func (c CertKey) IsZero() bool { return c.Cert.IsZero() && c.Key.IsZero() }

// PEM returns the certificate and the key in PEM.
func (c CertKey) PEM() (cert, key []byte) { return []byte(c.Cert.PEM()), []byte(c.Key.PEM()) }

// Kubernetes configures the components of Kubernetes.
//
// machined passes these settings to the processes of Kubernetes as JSON (package nodespec), without
// four fields that machined translates. AllowSchedulingOnControlPlane becomes a taint of the node.
// Authentication and Authorization contain secrets and become files. MachineObjects becomes a
// separate file.
type Kubernetes struct {
	AllowSchedulingOnControlPlane bool              `yaml:"allowSchedulingOnControlPlane" json:"-"`
	MaxPods                       int               `yaml:"maxPods" limits:"1 to 253, the addresses of the machine's /24"`
	FinishedPods                  int               `yaml:"finishedPods" limits:"1 to 100000"`
	PodEvictionTimeout            Duration          `yaml:"podEvictionTimeout" limits:"whole seconds, 10s to 24h"`
	FeatureGates                  FeatureGates      `yaml:"featureGates,omitempty"`
	APIServer                     APIServer         `yaml:"apiServer"`
	Kubelet                       Kubelet           `yaml:"kubelet"`
	PodSecurity                   PodSecurity       `yaml:"podSecurity"`
	Audit                         Audit             `yaml:"audit"`
	Scheduler                     Scheduler         `yaml:"scheduler"`
	ControllerManager             ControllerManager `yaml:"controllerManager"`
	SealedPolicies                SealedPolicies    `yaml:"sealedPolicies"`
	Authentication                Authentication    `yaml:"authentication" json:"-"`
	Authorization                 Authorization     `yaml:"authorization" json:"-"`
	MachineObjects                MachineObjects    `yaml:"machineObjects" json:"-"`
}

// MachineObjects configures the Kubernetes objects that describe the machines of the cluster, with
// the kinds of Cluster API. The processes of Kubernetes read these settings from a separate file,
// so that a change does not restart the processes.
type MachineObjects struct {
	Enabled bool `yaml:"enabled"`
	// Inventory lets machines without a configuration send their inventory, so that host objects
	// describe them.
	Inventory bool `yaml:"inventory"`
	// Claims lets a MachineDeployment claim approved waiting machines as workers.
	Claims bool `yaml:"claims"`
}

// PodSecurity is the cluster-wide Pod Security admission. The labels of a namespace take
// precedence.
type PodSecurity struct {
	Default          PodSecurityLevel `yaml:"default"`
	ExemptNamespaces []string         `yaml:"exemptNamespaces"`
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

func (c *Cluster) defaults() {
	c.Spec.Networks = ClusterNetworks{
		Pods:          []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 0, 0}), 16)},
		Services:      []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, 0, 0}), 12)},
		Domain:        "cluster.local",
		Encapsulation: EncapsulationWireGuard,
		AnnounceAPI:   AnnounceLink,
	}
	c.Spec.DNS.CacheTTL = Duration(30 * time.Second)
	c.Spec.Etcd.Snapshots = defaultSnapshots()
	c.Spec.LocalVolumes.Enabled = true
	c.Spec.Kubernetes = DefaultKubernetes()
}

// DefaultKubernetes returns the settings of the components if the configuration sets no field.
func DefaultKubernetes() Kubernetes {
	return Kubernetes{
		AllowSchedulingOnControlPlane: true,
		MaxPods:                       110,
		FinishedPods:                  1000,
		PodEvictionTimeout:            Duration(5 * time.Minute),
		APIServer:                     defaultAPIServer(),
		Kubelet:                       defaultKubelet(),
		PodSecurity:                   PodSecurity{Default: PodSecurityBaseline, ExemptNamespaces: []string{"kube-system"}},
		Audit:                         Audit{MaxFileSize: 100 << 20, MaxFiles: 10},
		ControllerManager:             defaultControllerManager(),
	}
}
