package nodespec

// File names of the credentials in the directory of each process (paths.KubeAPI,
// paths.KubeControllers, paths.KubeNode). All are PEM except Encryption (an
// apiserver.config.k8s.io/v1 EncryptionConfiguration). Certificates are ECDSA P-256. machined
// renews them in place (write to a temporary name, rename), so a reader must reload them when they
// change.
const (
	// In every directory: the issuing Kubernetes CA and the other trusted CAs.
	CA = "ca.crt"

	// In paths.KubeAPI. Serving; SANs: localhost, kubernetes[.default[.svc[.DOMAIN]]], first
	// service address, node addresses, endpoint
	APIServerCert = "apiserver.crt"
	APIServerKey  = "apiserver.key"
	// CN=kube-apiserver-kubelet-client; the API server's identity towards kubelets
	KubeletClientCert = "kubelet-client.crt"
	KubeletClientKey  = "kubelet-client.key"
	FrontProxyCA      = "front-proxy-ca.crt"     // also in paths.KubeControllers
	FrontProxyCert    = "front-proxy-client.crt" // CN=front-proxy-client
	FrontProxyKey     = "front-proxy-client.key"
	ServiceAccountKey = "sa.key" // private, ECDSA P-256; also in paths.KubeControllers
	ServiceAccountPub = "sa.pub"
	Encryption        = "encryption.yaml"
	KMSFile           = "kms.json" // a KMS; absent without a key manager
	KMSSocket         = "kms.sock" // of the plugin of the key manager
	EtcdCA            = "etcd-ca.crt"
	EtcdPeerCert      = "etcd-peer.crt" // serving and client, for peers
	EtcdPeerKey       = "etcd-peer.key"
	// an apiserver.config.k8s.io/v1 AuthenticationConfiguration
	Authentication = "authentication.yaml"
	// an apiserver.config.k8s.io/v1 AuthorizationConfiguration
	Authorization = "authorization.yaml"
	// a trust.RevokedSet
	Revoked = "revoked.json"

	// In paths.KubeControllers.
	SigningCA           = "signing-ca.crt"         // the only issuing CA
	CAKey               = "ca.key"                 // its key; signs kubelet CSRs
	ControllersCert     = "controller-manager.crt" // CN=system:kube-controller-manager
	ControllersKey      = "controller-manager.key"
	SchedulerCert       = "scheduler.crt" // CN=system:kube-scheduler
	SchedulerKey        = "scheduler.key"
	ControllersServing  = "serving.crt" // serving on loopback for both
	ControllersServingK = "serving.key"
	MetricsCert         = "metrics.crt" // CN=orlop:metrics; towards the API server and kubelets
	MetricsKey          = "metrics.key"
	// serving; SAN: the name by which the API server's aggregator calls it
	MetricsServing    = "metrics-serving.crt"
	MetricsServingKey = "metrics-serving.key"
	// CN=orlop:addons; gives add-ons their rights, and impersonates them
	AddonsCert = "addons.crt"
	AddonsKey  = "addons.key"
	Addons     = "addons.json" // a list of Addon; may contain Secrets

	// In paths.KubeNode.
	KubeletCert       = "kubelet.crt" // CN=system:node:NAME, O=system:nodes
	KubeletKey        = "kubelet.key"
	KubeletServing    = "kubelet-serving.crt" // SANs: node name and addresses
	KubeletServingKey = "kubelet-serving.key"
	ProxyCert         = "kube-proxy.crt" // CN=system:kube-proxy
	ProxyKey          = "kube-proxy.key"
	DNSCert           = "coredns.crt" // CN=orlop:coredns
	DNSKey            = "coredns.key"
	// CN=orlop:node-agent:NAME, O=orlop:node-agents; reads Nodes, Pods, NetworkPolicies, writes the
	// DNS EndpointSlice
	NodeAgentCert  = "node-agent.crt"
	NodeAgentKey   = "node-agent.key"
	NodeLabelsFile = "node-labels.json" // NodeLabels
	// a JSON object of passwords by the address of the router; absent without passwords
	BGPPasswordsFile = "bgp-passwords.json"

	// MachineObjectsFile is in each of the three directories; a MachineObjects.
	MachineObjectsFile = "machine-objects.json"
	// HostsFile is in the directory of the controllers; an inventory.Listing. machined
	// replaces it every few seconds.
	HostsFile = "hosts.json"
	// ClaimsFile is in the directory of the controllers; a claim.List. The leading controllers
	// replace it every few seconds, and machined reads it.
	ClaimsFile = "claims.json"
	// ClusterReportFile is in the directory of the controllers; a ClusterReport. machined replaces
	// it every minute while the controllers of its machine lead.
	ClusterReportFile = "cluster-report.json"
)

// MetricsUser reads the resource usage of nodes and pods from kubelets, and serves it as
// MetricsHost.
const (
	MetricsUser = "orlop:metrics"
	MetricsHost = "orlop-metrics.kube-system.svc"
)

// ProblemPrefix begins the detail of a component that is ready but has a problem: its process is
// not restarted, but the machine is unhealthy.
const ProblemPrefix = "problem: "

// Extensions is the component that reports the user objects that block the API
// (orchestrator/extensions).
const Extensions = "extensions"

// AddonsUser reconciles the add-ons of the configuration.
const AddonsUser = "orlop:addons"

// BreakGlassUser is the user of an admin's repair of the cluster over the management API, in the
// group system:masters. Its certificate is valid for minutes.
const BreakGlassUser = "orlop:break-glass"

const (
	// AddonsNamespace holds the records about the add-ons and the service accounts that they use.
	AddonsNamespace = "orlop-addons"
	// ReservedPrefix is the name prefix of namespaces that only add-ons can create.
	ReservedPrefix = "orlop-"
)

// The identity of a node's agent: its user is NodeAgentUser followed by the node's name. The API
// server restricts it to objects of its node.
const (
	NodeAgentUser  = "orlop:node-agent:"
	NodeAgentGroup = "orlop:node-agents"
)
