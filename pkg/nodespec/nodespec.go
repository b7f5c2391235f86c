// Package nodespec is what machined tells the orchestrator about the node: a value, written to
// paths.NodeSpec as JSON before the orchestrator's processes are started. It holds no secrets;
// those are files beside it (see Files).
package nodespec

import (
	"net/netip"
	"slices"
	"time"
)

// PodBridge is the link over which packets of its own pods come to the machine.
const PodBridge = "cni0"

// Spec describes one node of one cluster. Every field is final: defaults have been filled in by
// pkg/config and machined.
type Spec struct {
	Version  string `json:"version"`  // of the system
	Cluster  string `json:"cluster"`  // the cluster's name
	NodeName string `json:"nodeName"` // the Node object's name, a DNS-1123 subdomain
	// the machine's own addresses, the preferred one first
	NodeIPs []netip.Addr `json:"nodeIPs"`
	// whether the API server and the controllers run here
	ControlPlane bool `json:"controlPlane"`
	// the API server's URL for everyone outside, https://host:6443
	Endpoint string `json:"endpoint"`
	// ControlPlanes are the addresses of the cluster's control-plane machines, this one's perhaps
	// among them: their API servers are at paths.PortKubernetes, and each is a member of etcd. May
	// be empty where there is one only.
	ControlPlanes []netip.Addr `json:"controlPlanes"`
	// further names and addresses that the API server is reached by
	ExtraSANs    []string       `json:"extraSANs"`
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`     // one per address family
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"` // one per address family
	// the cluster DNS addresses, the tenth of each service range
	DNSIPs    []netip.Addr `json:"dnsIPs"`
	DNSDomain string       `json:"dnsDomain"` // cluster.local
	// the machine's own search domains, which pods try after the cluster's; may be empty
	DNSSearch []string `json:"dnsSearch,omitempty"`
	// the machine's own resolvers, for pods that want those; may be empty
	DNSUpstreams []netip.Addr `json:"dnsUpstreams"`
	// reference of the pause image in containerd
	PauseImage string `json:"pauseImage"`
	// ReservedMemory (bytes) and ReservedCPU (thousandths of a core) are kept for the system and
	// subtracted from what pods may use.
	ReservedMemory int64 `json:"reservedMemory"`
	ReservedCPU    int64 `json:"reservedCPU"`

	MaxPods int `json:"maxPods"` // pods a node takes
	// ended pods that are kept, in the whole cluster
	FinishedPods int `json:"finishedPods"`
	// seconds that pods which say nothing of it stay on a machine that is lost or not ready
	PodEviction int    `json:"podEviction"`
	EventTTL    string `json:"eventTTL"` // how long Events are kept, such as 1h
	// keep ordinary pods off this control-plane node
	Taint bool `json:"taint"`
	// the level enforced where a namespace says nothing
	PodSecurity       string   `json:"podSecurity"`
	PodSecurityExempt []string `json:"podSecurityExempt"` // namespaces that are not checked
	AuditFileMiB      int      `json:"auditFileMiB"`      // size of one file of the API's audit log
	AuditFiles        int      `json:"auditFiles"`        // old files of it that are kept

	// Encapsulation is how packets between pods of different nodes cross the network: wireguard,
	// vxlan or none.
	Encapsulation string `json:"encapsulation"`

	// External says which parts of the cluster something else supplies.
	External External `json:"external,omitzero"`
	// DNS says whom the cluster's DNS asks about names outside the cluster.
	DNS DNS `json:"dns"`
	// VirtualAddresses are addresses of the API, at most one of each family; each is answered for
	// by one control-plane machine at a time.
	VirtualAddresses []netip.Addr `json:"virtualAddresses,omitempty"`
	// Pools are where Services of type LoadBalancer get their addresses; without them nothing here
	// gives them any.
	Pools []Pool `json:"pools,omitempty"`
	// ExternalIPs are the addresses that Services may name as their external ones; without them
	// none may.
	ExternalIPs []Range `json:"externalIPs,omitempty"`
	// Kubelet says which pods reach the kubelets of the cluster's machines, at paths.PortKubelet.
	Kubelet Kubelet `json:"kubelet,omitzero"`
	// LocalVolumes says whether claims get volumes on the nodes' own disks.
	LocalVolumes LocalVolumes `json:"localVolumes,omitzero"`

	// PodCertificates says whether pods may have certificates that say who they are.
	PodCertificates bool `json:"podCertificates,omitempty"`

	// TokenWebhook is the service that the API server asks about tokens that nobody else knows; nil
	// when there is none.
	TokenWebhook *TokenWebhook `json:"tokenWebhook,omitempty"`
}

// Kubelet says which pods reach the kubelets' port. The zero value is all of them.
type Kubelet struct {
	ClosedToPods bool     `json:"closedToPods,omitempty"`
	Namespaces   []string `json:"namespaces,omitempty"` // whose pods reach it all the same
}

// External says which parts of the cluster something else in it supplies. Our own do not run, and
// what they left is taken away.
type External struct {
	Proxy   bool `json:"proxy,omitempty"`   // what makes Services reachable
	DNS     bool `json:"dns,omitempty"`     // what answers at DNSIPs
	Network bool `json:"network,omitempty"` // what connects pods, and says who may reach whom
}

// LocalVolumes says whether claims get volumes on the nodes' own disks.
type LocalVolumes struct {
	Disabled bool `json:"disabled,omitempty"`
	// bytes of each node's DATA that they do not get; 0: as much as package localvolumes thinks
	// right
	Reserve int64 `json:"reserve,omitempty"`
}

// DNS says whom the cluster's DNS asks about names outside the cluster, and how long it keeps what
// they answer.
type DNS struct {
	// for every name without a stub domain; with none there are no such names
	Upstreams   []netip.AddrPort `json:"upstreams"`
	StubDomains []StubDomain     `json:"stubDomains"` // the most specific one counts
	// the most that an answer is kept, seconds, from 1
	CacheTTL int `json:"cacheTTL"`
}

// StubDomain is a domain with resolvers of its own.
type StubDomain struct {
	Domain  string           `json:"domain"` // in lower case, without a dot at the end
	Servers []netip.AddrPort `json:"servers"`
}

// OwnAddress is the address by which the cluster's machines know this one: the one of its own that
// ControlPlanes names, else the first.
func (s Spec) OwnAddress() netip.Addr {
	for _, a := range s.ControlPlanes {
		if slices.Contains(s.NodeIPs, a) {
			return a
		}
	}
	return s.NodeIPs[0]
}

// OtherControlPlanes are those of ControlPlanes that are not this machine.
func (s Spec) OtherControlPlanes() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(s.ControlPlanes), func(a netip.Addr) bool { return slices.Contains(s.NodeIPs, a) })
}

// TokenWebhook says how the service for tokens is asked (the TokenReview API).
type TokenWebhook struct {
	// file name in paths.KubeAPI; another one when its content is another
	Kubeconfig string `json:"kubeconfig"`
	CacheTTL   string `json:"cacheTTL"` // how long an answer is kept, such as 2m0s
}

// AccessCheck is what `orchestrator check-access` reads, as JSON: the documents that the API server
// would read, and the cluster's DNS domain, which its own issuer is named after.
type AccessCheck struct {
	Authentication string `json:"authentication"`
	Authorization  string `json:"authorization"`
	DNSDomain      string `json:"dnsDomain"`
}

// PodsStoppedFile is what the component kubelet tells when, after SIGPWR, the pods of the node have ended
// in order.
const PodsStoppedFile = "the pods have ended"

// Savepoint is what `orchestrator save-data` writes: what was kept of the cluster's data for the
// version that runs.
type Savepoint struct {
	Revision int64 `json:"revision"` // etcd's
	Size     int64 `json:"size"`     // bytes
}

// RestoredFile, in paths.StoredSnapshot, holds SavepointRestored.
const RestoredFile = "restored.json"

// SavepointRestored says what was lost when the data of a newer version gave way to what was saved for
// this one.
type SavepointRestored struct {
	Version  string    `json:"version"` // of the system that got its data back
	At       time.Time `json:"at"`
	Saved    time.Time `json:"saved"`    // when they were saved
	Revision int64     `json:"revision"` // the last one that was saved
	Dropped  int64     `json:"dropped"`  // revisions after it that are lost
}

// NodeGCRequest is what `orchestrator forget-nodes` reads, as JSON.
type NodeGCRequest struct {
	Names []string `json:"names"` // of Nodes
	// MadeBefore: a Node that was made later is not one of a machine that was taken out, but of
	// another one that has its name.
	MadeBefore time.Time `json:"madeBefore"`
}

// DrainRequest is what `orchestrator drain` reads, as JSON. Without Refuse and Delete, a pod that its
// disruption budget does not let go when the time is up stays where it is, and ends with the
// machine.
type DrainRequest struct {
	Timeout time.Duration `json:"timeout"` // for all pods together
	// take pods again if a disruption budget does not let one go in time
	Refuse bool `json:"refuse"`
	Delete bool `json:"delete"` // delete such a pod at once
	// nothing of that: what the pods left for did not happen, and the node takes some again
	Undo bool `json:"undo"`
}

// DrainResult is what it writes.
type DrainResult struct {
	Evicted int `json:"evicted"` // pods
	// pods that are still there, and why; and what else went wrong
	Remaining []string `json:"left"`
	Refused   bool     `json:"refused"` // as the order wants it: the node takes pods again
}
