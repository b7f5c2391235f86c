// Package nodespec defines the specification of the node, which machined writes as JSON to
// paths.NodeSpec before it starts the orchestrator's processes. It contains no secrets; they are in
// separate files (see Files), which the package names with their certificates. The package also
// defines the input and output of the orchestrator's commands (Command).
package nodespec

import (
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
)

// PodBridge is the link on which the machine receives packets of its own pods.
const PodBridge = "cni0"

// Spec describes a node of a cluster. Every field is final: pkg/config and machined have filled in
// the defaults.
type Spec struct {
	Version string `json:"version"` // of the system
	Cluster string `json:"cluster"` // name of the cluster
	// the API server's URL for clients outside, https://host:6443
	Endpoint string `json:"endpoint"`
	// ControlPlanes are the addresses of the cluster's control-plane machines, possibly with this
	// machine. Their API servers are at paths.PortKubernetes, and each is an etcd member. It may be
	// empty for a single machine.
	ControlPlanes []netip.Addr `json:"controlPlanes"`
	// VirtualAddresses are virtual addresses of the API, at most one per family. A single
	// control-plane machine holds each address at a time.
	VirtualAddresses []netip.Addr `json:"virtualAddresses,omitempty"`

	Node    Node    `json:"node"`    // this machine
	Network Network `json:"network"` // ranges and addresses of the cluster
	DNS     DNS     `json:"dns"`     // resolvers for names outside the cluster

	// External selects the cluster parts that an external component replaces.
	External External `json:"external,omitzero"`
	// LocalVolumes configures volumes for PersistentVolumeClaims on the nodes' own disks.
	LocalVolumes LocalVolumes `json:"localVolumes,omitzero"`

	// Kubernetes are the settings of components, as the configuration states them.
	Kubernetes config.Kubernetes `json:"kubernetes"`
	// PodCertificates reports whether pods can get certificates for their identity.
	PodCertificates bool `json:"podCertificates,omitempty"`
	// TokenWebhook is the service that the API server calls for tokens that no other authenticator
	// knows; nil: none.
	TokenWebhook *TokenWebhook `json:"tokenWebhook,omitempty"`

	// Level is the level of the cluster, and Emulated the version that API server, controllers and
	// scheduler emulate, unknown if it is their own (package emulation). The processes of the
	// orchestrator set both when they start.
	Level    emulation.Minor `json:"-"`
	Emulated emulation.Minor `json:"-"`
}

// Node describes this machine as a node of the cluster.
type Node struct {
	Name string `json:"name"` // name of the Node object, a DNS-1123 subdomain
	// the machine's own addresses, the preferred address first
	IPs []netip.Addr `json:"ips"`
	// whether the API server and the controllers run here
	ControlPlane bool `json:"controlPlane"`
	// taint this control-plane node against ordinary pods
	Taint bool `json:"taint"`
	// reference of the pause image in containerd
	PauseImage string `json:"pauseImage"`
	// ReservedMemory (bytes) and ReservedCPU (thousandths of a core) are reserved for the system
	// and not available to pods.
	ReservedMemory int64 `json:"reservedMemory"`
	ReservedCPU    int64 `json:"reservedCPU"`
	// ReservedCPUs are the processors that no container gets alone, such as 0-1,8; their number
	// then counts instead of ReservedCPU. Empty: any.
	ReservedCPUs string `json:"reservedCPUs,omitempty"`
	// ImagePolicy has the rules for signatures of images; empty: none is required.
	ImagePolicy []config.ImageRule `json:"imagePolicy,omitempty"`
	// Swap is the swap in use, in bytes. The kubelet reads its size at its start only, so a change
	// restarts it.
	Swap uint64 `json:"swap,omitempty"`
}

// Network holds the ranges and addresses of the cluster.
type Network struct {
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`     // one per address family
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"` // one per address family
	// the cluster DNS addresses: the tenth address of each service range
	DNSIPs    []netip.Addr `json:"dnsIPs"`
	DNSDomain string       `json:"dnsDomain"` // cluster.local
	// Encapsulation is the transport of packets between pods of different nodes: wireguard, vxlan
	// or none.
	Encapsulation string `json:"encapsulation"`
	// Pools are the address pools for Services of type LoadBalancer. Without pools, Orlop OS
	// assigns no addresses.
	Pools []Pool `json:"pools,omitempty"`
	// ExternalIPs are the addresses that Services may use as external IPs; without them, none.
	ExternalIPs []Range `json:"externalIPs,omitempty"`
	// BGP configures the sessions with routers; nil: none.
	BGP *BGP `json:"bgp,omitempty"`
	// AnnounceAPI reports whether each control-plane machine with a ready API server announces
	// VirtualAddresses by BGP; otherwise a single machine answers for them on the link.
	AnnounceAPI bool `json:"announceAPI,omitempty"`
	// Forwarder reports whether the API server reaches servers outside the cluster by the forwarder
	// (paths.ForwarderSocket).
	Forwarder bool `json:"forwarder,omitempty"`
}

// BGP configures the sessions of the machine with routers.
type BGP struct {
	ASN      uint32     `json:"asn"`
	RouterID netip.Addr `json:"routerID"` // IPv4
	Peers    []BGPPeer  `json:"peers"`
}

// BGPPeer is a router. The passwords are in the file BGPPasswordsFile.
type BGPPeer struct {
	Address  netip.AddrPort `json:"address"`
	ASN      uint32         `json:"asn"`
	HoldTime int            `json:"holdTime"` // seconds
	Source   netip.Addr     `json:"source,omitzero"`
	OneHop   bool           `json:"oneHop,omitempty"`
}

// External selects the cluster parts that an external component replaces. Orlop's own parts do not
// run, and their leftovers are removed.
type External struct {
	Proxy   bool `json:"proxy,omitempty"`   // makes Services reachable
	DNS     bool `json:"dns,omitempty"`     // answers at Network.DNSIPs
	Network bool `json:"network,omitempty"` // connects pods and enforces NetworkPolicies
}

// LocalVolumes configures volumes for PersistentVolumeClaims on the nodes' own disks.
type LocalVolumes struct {
	Disabled bool `json:"disabled,omitempty"`
	// bytes of each node's DATA partition that volumes cannot use; 0: the default of package
	// localvolumes
	Reserve int64 `json:"reserve,omitempty"`
	// volumes of the machine with a StorageClass of their own, sorted by name
	Pools []VolumePool `json:"pools,omitempty"`
	// Volume is the volume of the machine that holds the part volumes of DATA; empty: DATA itself
	Volume string `json:"volume,omitempty"`
}

// VolumePool is a volume of the machine with a StorageClass of its own.
type VolumePool struct {
	Name string `json:"name"`
	Dir  string `json:"dir"` // missing while the disk is missing
}

// DNS configures the resolvers of the cluster DNS for names outside the cluster and the cache of
// their answers, and the resolvers of pods that do not use the cluster DNS.
type DNS struct {
	// for every name without a stub domain; if empty, these names do not resolve
	Upstreams   []netip.AddrPort `json:"upstreams"`
	StubDomains []StubDomain     `json:"stubDomains"`   // the most specific domain applies
	TLS         *TLS             `json:"tls,omitempty"` // of Upstreams; nil: no TLS
	// maximum time of an answer in the cache, seconds, from 1
	CacheTTL int `json:"cacheTTL"`
	// the machine's own resolvers, for pods with dnsPolicy Default; may be empty
	NodeUpstreams []netip.Addr `json:"nodeUpstreams"`
	// the machine's own search domains, which pods use after the cluster's; may be empty
	NodeSearch []string `json:"nodeSearch,omitempty"`
}

// TLS says how the certificates of resolvers are checked.
type TLS struct {
	ServerName string `json:"serverName,omitempty"` // empty: the address of the resolver
	CA         string `json:"ca,omitempty"`         // PEM; empty: the public CAs of the image
}

// StubDomain is a domain with its own resolvers.
type StubDomain struct {
	Domain  string           `json:"domain"` // in lower case, without a dot at the end
	Servers []netip.AddrPort `json:"servers"`
}

// OwnAddress returns the address by which the cluster's machines know this machine: its own address
// in ControlPlanes, else its first address.
func (s Spec) OwnAddress() netip.Addr {
	for _, a := range s.ControlPlanes {
		if slices.Contains(s.Node.IPs, a) {
			return a
		}
	}
	return s.Node.IPs[0]
}

// OtherControlPlanes returns ControlPlanes without this machine.
func (s Spec) OtherControlPlanes() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(s.ControlPlanes), func(a netip.Addr) bool { return slices.Contains(s.Node.IPs, a) })
}

// TokenWebhook configures the webhook for tokens (the TokenReview API).
type TokenWebhook struct {
	// file name in paths.KubeAPI; it changes with the content
	Kubeconfig string `json:"kubeconfig"`
	CacheTTL   string `json:"cacheTTL"` // validity of a cached answer, such as 2m0s
}

// AccessCheck is the JSON input of `orchestrator check-access`: the documents for the API server,
// and the DNS domain of the cluster, from which the name of its own issuer derives.
type AccessCheck struct {
	Authentication string `json:"authentication"`
	Authorization  string `json:"authorization"`
	DNSDomain      string `json:"dnsDomain"`
}

// PodsStoppedDetail is the detail that the component kubelet reports when, after SIGPWR, the pods
// of the node have ended in order.
const PodsStoppedDetail = "the pods have ended"

// Savepoint is the output of `orchestrator take-savepoint`: the savepoint of the cluster's data for
// the running version.
type Savepoint struct {
	Revision int64 `json:"revision"` // of etcd
	Size     int64 `json:"size"`     // bytes
}

// RestoredFile, in paths.EtcdSnapshots, holds SavepointRestored.
const RestoredFile = "restored.json"

// SavepointRestored describes the loss when the savepoint of this version replaced the data of a
// newer version.
type SavepointRestored struct {
	Version       string    `json:"version"` // version of the system that got its data back
	At            time.Time `json:"at"`
	Saved         time.Time `json:"saved"`    // time of the savepoint
	Revision      int64     `json:"revision"` // last revision in the savepoint
	LostRevisions int64     `json:"dropped"`  // lost revisions after it
}

// NodeGCRequest is the JSON input of `orchestrator delete-removed-nodes`.
type NodeGCRequest struct {
	Names []string `json:"names"` // of Nodes
	// MadeBefore protects newer Nodes: a Node created later belongs to another machine with the
	// same name.
	MadeBefore time.Time `json:"madeBefore"`
}
