// Package nodespec defines the specification of the node (Spec). machined writes it as JSON to
// paths.NodeSpec before it starts the processes of the orchestrator. The specification contains no
// secrets. Secrets are in separate files, and the package defines the names of these files and the
// certificates in them. The package also defines the input and output of the orchestrator's
// commands (Command).
package nodespec

import (
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
)

// PodBridge is the link through which the machine exchanges packets with its own pods.
const PodBridge = "cni0"

// Spec describes a node of a cluster. All fields are complete: pkg/config and machined have set the
// defaults.
type Spec struct {
	Version string `json:"version"` // of the system
	Cluster string `json:"cluster"` // name of the cluster
	// URL of the API server for clients outside the cluster: https://host:6443
	Endpoint string `json:"endpoint"`
	// ControlPlanes are the addresses of the control-plane machines of the cluster; one of them can
	// be this machine. On each of them, an API server listens on paths.PortKubernetes, and an etcd
	// member runs. The list may be empty for a single machine.
	ControlPlanes []netip.Addr `json:"controlPlanes"`
	// VirtualAddresses are the virtual addresses of the API, at most one per family.
	// Network.AnnounceAPI selects how machines serve them.
	VirtualAddresses []netip.Addr `json:"virtualAddresses,omitempty"`

	Node    Node    `json:"node"`    // this machine
	Network Network `json:"network"` // ranges and addresses of the cluster
	DNS     DNS     `json:"dns"`     // resolvers for names outside the cluster

	// External selects the cluster parts that an external component replaces.
	External External `json:"external,omitzero"`
	// LocalVolumes configures the PersistentVolumes on the disks of the nodes.
	LocalVolumes LocalVolumes `json:"localVolumes,omitzero"`

	// Kubernetes holds the settings of the Kubernetes components, as in the configuration.
	Kubernetes config.Kubernetes `json:"kubernetes"`
	// PodCertificates reports whether pods can get certificates for their identity.
	PodCertificates bool `json:"podCertificates,omitempty"`
	// TokenWebhook is the webhook that the API server calls for a token that no other authenticator
	// accepts; nil for none.
	TokenWebhook *TokenWebhook `json:"tokenWebhook,omitempty"`

	// Level is the level of the cluster. Emulated is the version that the API server, the
	// controllers and the scheduler emulate; it is the unknown version if they emulate none
	// (package emulation). Each process of the orchestrator sets both when it starts.
	Level    emulation.Minor `json:"-"`
	Emulated emulation.Minor `json:"-"`
}

// Node describes this machine as a node of the cluster.
type Node struct {
	Name string `json:"name"` // name of the Node object, a DNS-1123 subdomain
	// addresses of the machine, the preferred address first
	IPs []netip.Addr `json:"ips"`
	// whether the API server and the controllers run on this machine
	ControlPlane bool `json:"controlPlane"`
	// whether a taint keeps ordinary pods off this control-plane node
	Taint bool `json:"taint"`
	// reference of the pause image in containerd
	PauseImage string `json:"pauseImage"`
	// ReservedMemory (bytes) and ReservedCPU (thousandths of a core) are reserved for the system,
	// so pods cannot use them.
	ReservedMemory int64 `json:"reservedMemory"`
	ReservedCPU    int64 `json:"reservedCPU"`
	// ReservedCPUs are processors that no container gets exclusively, for example 0-1,8. If it is
	// set, the number of these processors replaces ReservedCPU.
	ReservedCPUs string `json:"reservedCPUs,omitempty"`
	// ImagePolicy has the rules for signatures of images; empty if no image needs a signature.
	ImagePolicy []config.ImageRule `json:"imagePolicy,omitempty"`
	// Swap is the size of the active swap, in bytes. The kubelet reads the size only at its start,
	// so a change of this field restarts the kubelet.
	Swap uint64 `json:"swap,omitempty"`
}

// Network holds the ranges and addresses of the cluster.
type Network struct {
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`     // one per address family
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"` // one per address family
	// addresses of the cluster DNS: the tenth address of each service range
	DNSIPs    []netip.Addr `json:"dnsIPs"`
	DNSDomain string       `json:"dnsDomain"` // for example cluster.local
	// Encapsulation is the transport of packets between pods on different nodes: wireguard, vxlan
	// or none.
	Encapsulation string `json:"encapsulation"`
	// Pools are the address pools for Services of type LoadBalancer. Without a pool, Orlop OS
	// assigns no address to a Service.
	Pools []Pool `json:"pools,omitempty"`
	// ExternalIPs are the addresses that Services may have in externalIPs; empty forbids external
	// IPs.
	ExternalIPs []Range `json:"externalIPs,omitempty"`
	// BGP configures the BGP sessions with routers; nil for no sessions.
	BGP *BGP `json:"bgp,omitempty"`
	// AnnounceAPI selects how machines serve VirtualAddresses. If it is true, each control-plane
	// machine with a ready API server announces the addresses by BGP. If it is false, a single
	// control-plane machine at a time holds an address and answers ARP and NDP for it.
	AnnounceAPI bool `json:"announceAPI,omitempty"`
	// Forwarder reports whether the API server uses the forwarder (paths.ForwarderSocket) to reach
	// servers outside the cluster.
	Forwarder bool `json:"forwarder,omitempty"`
}

// BGP configures the BGP sessions of the machine with routers.
type BGP struct {
	ASN      uint32     `json:"asn"`
	RouterID netip.Addr `json:"routerID"` // an IPv4 address
	Peers    []BGPPeer  `json:"peers"`
}

// BGPPeer is a router. The file BGPPasswordsFile holds the passwords.
type BGPPeer struct {
	Address  netip.AddrPort `json:"address"`
	ASN      uint32         `json:"asn"`
	HoldTime int            `json:"holdTime"` // seconds
	// local address of the session; zero if the kernel selects the address
	Source netip.Addr `json:"source,omitzero"`
	// whether the router must be on the same link (RFC 5082: hop limit 255)
	OneHop bool `json:"oneHop,omitempty"`
}

// External selects the cluster parts that an external component replaces. If a field is true,
// Orlop's own part does not run, and the orchestrator removes what an earlier run of it has left.
type External struct {
	Proxy   bool `json:"proxy,omitempty"`   // the service proxy
	DNS     bool `json:"dns,omitempty"`     // the cluster DNS, which answers at Network.DNSIPs
	Network bool `json:"network,omitempty"` // the pod network, with NetworkPolicies
}

// LocalVolumes configures the PersistentVolumes on the disks of the nodes.
type LocalVolumes struct {
	Disabled bool `json:"disabled,omitempty"`
	// bytes of the DATA partition of each node that PersistentVolumes cannot use; 0 for the default
	// of package localvolumes
	Reserve int64 `json:"reserve,omitempty"`
	// volumes of the machine that have their own StorageClass, sorted by name
	Pools []VolumePool `json:"pools,omitempty"`
	// Volume is the name of the volume of the machine that holds the PersistentVolumes in place of
	// DATA; empty for DATA.
	Volume string `json:"volume,omitempty"`
}

// VolumePool is a volume of the machine that has its own StorageClass.
type VolumePool struct {
	Name string `json:"name"`
	Dir  string `json:"dir"` // mount point; does not exist while the disk is missing
}

// DNS configures the cluster DNS for names outside the cluster, and the resolvers of pods that do
// not use the cluster DNS.
type DNS struct {
	// resolvers for names in no stub domain; if empty, these names do not resolve
	Upstreams   []netip.AddrPort `json:"upstreams"`
	StubDomains []StubDomain     `json:"stubDomains"`   // the longest matching domain applies
	TLS         *TLS             `json:"tls,omitempty"` // for Upstreams; nil for no TLS
	// maximum time of an answer in the cache, in seconds; at least 1
	CacheTTL int `json:"cacheTTL"`
	// resolvers of the machine, for pods with dnsPolicy Default; may be empty
	NodeUpstreams []netip.Addr `json:"nodeUpstreams"`
	// search domains of the machine, which pods use after those of the cluster; may be empty
	NodeSearch []string `json:"nodeSearch,omitempty"`
}

// TLS configures the verification of the certificates of resolvers.
type TLS struct {
	// name in the certificates; if empty, a certificate must contain the address of its resolver
	ServerName string `json:"serverName,omitempty"`
	CA         string `json:"ca,omitempty"` // PEM; empty for the public CAs of the image
}

// StubDomain is a domain that has its own resolvers.
type StubDomain struct {
	Domain  string           `json:"domain"` // in lower case, without a dot at the end
	Servers []netip.AddrPort `json:"servers"`
}

// OwnAddress returns the address by which the other machines of the cluster know this machine. This
// is its address in ControlPlanes, or its first address if ControlPlanes has none of its addresses.
func (s Spec) OwnAddress() netip.Addr {
	for _, a := range s.ControlPlanes {
		if slices.Contains(s.Node.IPs, a) {
			return a
		}
	}
	return s.Node.IPs[0]
}

// OtherControlPlanes returns ControlPlanes without the addresses of this machine.
func (s Spec) OtherControlPlanes() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(s.ControlPlanes), func(a netip.Addr) bool { return slices.Contains(s.Node.IPs, a) })
}

// TokenWebhook configures the webhook to which the API server sends a TokenReview.
type TokenWebhook struct {
	// name of a file in paths.KubeAPI; a file with other content has another name
	Kubeconfig string `json:"kubeconfig"`
	CacheTTL   string `json:"cacheTTL"` // time for which a result is cached, for example 2m0s
}

// AccessCheck is the JSON input of `orchestrator check-access`: the two files of the API server
// about authentication and authorization, and the DNS domain of the cluster. The name of the API
// server's own token issuer contains this domain.
type AccessCheck struct {
	Authentication string `json:"authentication"`
	Authorization  string `json:"authorization"`
	DNSDomain      string `json:"dnsDomain"`
}

// PodsStoppedDetail is a detail of the component kubelet. The component reports it after SIGPWR,
// when the pods of the node have ended in order.
const PodsStoppedDetail = "the pods have ended"

// Savepoint is the output of `orchestrator take-savepoint`. It describes the savepoint of the etcd
// data for the running version.
type Savepoint struct {
	Revision int64 `json:"revision"` // last revision of etcd in the savepoint
	Size     int64 `json:"size"`     // bytes
}

// RestoredFile is a file in paths.EtcdSnapshots with a SavepointRestored.
const RestoredFile = "restored.json"

// SavepointRestored describes the restore of a savepoint at a rollback, and the revisions of the
// newer version that were lost.
type SavepointRestored struct {
	Version       string    `json:"version"` // version of the system that restored the savepoint
	At            time.Time `json:"at"`
	Saved         time.Time `json:"saved"`    // time of the savepoint
	Revision      int64     `json:"revision"` // last revision in the savepoint
	LostRevisions int64     `json:"dropped"`  // number of revisions after the savepoint
}

// NodeGCRequest is the JSON input of `orchestrator delete-removed-nodes`.
type NodeGCRequest struct {
	Names []string `json:"names"` // names of the Nodes
	// MadeBefore is the time before which a deleted Node must have been created. A Node that was
	// created later belongs to another machine with the same name, and is not deleted.
	MadeBefore time.Time `json:"madeBefore"`
}
