package nodespec

// Names of the files in the directory of each process (paths.KubeAPI, paths.KubeControllers,
// paths.KubeNode). The certificates are ECDSA P-256, in PEM. machined replaces a file by a rename,
// for example at the renewal of a certificate, so a process must reload its files when they change.
const (
	// In each directory: the issuing Kubernetes CA, and the other trusted CAs.
	CA = "ca.crt"

	// In paths.KubeAPI. Serving certificate; SANs: localhost, kubernetes[.default[.svc[.DOMAIN]]],
	// first address of the service range, addresses of the node, endpoint
	APIServerCert = "apiserver.crt"
	APIServerKey  = "apiserver.key"
	// CN=kube-apiserver-kubelet-client; the identity of the API server for kubelets
	KubeletClientCert = "kubelet-client.crt"
	KubeletClientKey  = "kubelet-client.key"
	FrontProxyCA      = "front-proxy-ca.crt"     // also in paths.KubeControllers
	FrontProxyCert    = "front-proxy-client.crt" // CN=front-proxy-client
	FrontProxyKey     = "front-proxy-client.key"
	ServiceAccountKey = "sa.key" // private, ECDSA P-256; also in paths.KubeControllers
	ServiceAccountPub = "sa.pub"
	Encryption        = "encryption.yaml" // an apiserver.config.k8s.io/v1 EncryptionConfiguration
	KMSFile           = "kms.json"        // KMS; missing without a key manager
	KMSSocket         = "kms.sock"        // socket of the plugin for the key manager
	EtcdCA            = "etcd-ca.crt"
	EtcdPeerCert      = "etcd-peer.crt" // serving and client certificate for peers
	EtcdPeerKey       = "etcd-peer.key"
	// an apiserver.config.k8s.io/v1 AuthenticationConfiguration
	Authentication = "authentication.yaml"
	// an apiserver.config.k8s.io/v1 AuthorizationConfiguration
	Authorization = "authorization.yaml"
	// trust.RevokedSet in JSON
	Revoked = "revoked.json"

	// In paths.KubeControllers.
	SigningCA           = "signing-ca.crt"         // the CA that issues new certificates
	CAKey               = "ca.key"                 // key of SigningCA; signs CSRs of kubelets
	ControllersCert     = "controller-manager.crt" // CN=system:kube-controller-manager
	ControllersKey      = "controller-manager.key"
	SchedulerCert       = "scheduler.crt" // CN=system:kube-scheduler
	SchedulerKey        = "scheduler.key"
	ControllersServing  = "serving.crt" // for the controllers and the scheduler, on loopback
	ControllersServingK = "serving.key"
	MetricsCert         = "metrics.crt" // CN=orlop:metrics; client of the API server and kubelets
	MetricsKey          = "metrics.key"
	// serving certificate; SAN: MetricsHost, by which the aggregator of the API server calls it
	MetricsServing    = "metrics-serving.crt"
	MetricsServingKey = "metrics-serving.key"
	// CN=orlop:addons; gives add-ons their rights, and impersonates their accounts
	AddonsCert = "addons.crt"
	AddonsKey  = "addons.key"
	Addons     = "addons.json" // list of Addon in JSON; may contain Secrets

	// In paths.KubeNode.
	KubeletCert       = "kubelet.crt" // CN=system:node:NAME, O=system:nodes
	KubeletKey        = "kubelet.key"
	KubeletServing    = "kubelet-serving.crt" // SANs: node name and addresses
	KubeletServingKey = "kubelet-serving.key"
	ProxyCert         = "kube-proxy.crt" // CN=system:kube-proxy
	ProxyKey          = "kube-proxy.key"
	DNSCert           = "coredns.crt" // CN=orlop:coredns
	DNSKey            = "coredns.key"
	// CN=orlop:node-agent:NAME, O=orlop:node-agents; reads Nodes, Pods and NetworkPolicies, and
	// writes the EndpointSlice of the cluster DNS
	NodeAgentCert  = "node-agent.crt"
	NodeAgentKey   = "node-agent.key"
	NodeLabelsFile = "node-labels.json" // NodeLabels in JSON
	// JSON object: password by the address of the router; missing without passwords
	BGPPasswordsFile = "bgp-passwords.json"

	// MachineObjectsFile is in each of the three directories; MachineObjects in JSON.
	MachineObjectsFile = "machine-objects.json"
	// HostsFile is in paths.KubeControllers; inventory.Listing in JSON. machined replaces it every
	// few seconds.
	HostsFile = "hosts.json"
	// ClaimsFile is in paths.KubeControllers; claim.List in JSON. The controllers of the leader
	// replace it every few seconds, and machined reads it.
	ClaimsFile = "claims.json"
	// ClusterReportFile is in paths.KubeControllers; ClusterReport in JSON. machined replaces it
	// every minute while the controllers of its machine are the leader.
	ClusterReportFile = "cluster-report.json"
)

// MetricsUser is the user that reads the resource usage of nodes and pods from kubelets.
// MetricsHost is the name of the server that serves the usage.
const (
	MetricsUser = "orlop:metrics"
	MetricsHost = "orlop-metrics.kube-system.svc"
)

// ProblemPrefix begins the detail of a component that is ready but has a problem. machined does not
// restart its process, but reports the machine as unhealthy.
const ProblemPrefix = "problem: "

// Extensions is the name of the component that reports the objects of users that block the API
// (orchestrator/extensions).
const Extensions = "extensions"

// AddonsUser is the user that reconciles the add-ons of the configuration.
const AddonsUser = "orlop:addons"

// BreakGlassUser is the user with which an admin repairs the cluster over the management API. It is
// in the group system:masters. Its certificate is valid for a few minutes.
const BreakGlassUser = "orlop:break-glass"

const (
	// AddonsNamespace holds the records of the add-ons and their service accounts.
	AddonsNamespace = "orlop-addons"
	// ReservedPrefix is the name prefix of namespaces that only add-ons can create.
	ReservedPrefix = "orlop-"
)

// The identity of the agent of a node. Its user is NodeAgentUser followed by the name of the node.
// The API server restricts the agent to objects of its node.
const (
	NodeAgentUser  = "orlop:node-agent:"
	NodeAgentGroup = "orlop:node-agents"
)
