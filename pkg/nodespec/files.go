package nodespec

// Names of the files in the directory of each process (paths.KubeAPI, paths.KubeControllers,
// paths.KubeNode). The certificates are ECDSA P-256, in PEM. machined replaces a file by a rename,
// for example at the renewal of a certificate, so a process must reload its files when they change.
const (
	// CA is in each of the three directories. It contains the Kubernetes CA that issues
	// certificates, and the other trusted CAs.
	CA = "ca.crt"

	// The files in paths.KubeAPI follow.

	// APIServerCert is the serving certificate of the API server. Its SANs are localhost,
	// kubernetes[.default[.svc[.DOMAIN]]], the first address of the service range, the addresses of
	// the node and the endpoint of the cluster.
	APIServerCert = "apiserver.crt"
	APIServerKey  = "apiserver.key"
	// KubeletClientCert is the client certificate with which the API server calls kubelets. Its CN
	// is kube-apiserver-kubelet-client.
	KubeletClientCert = "kubelet-client.crt"
	KubeletClientKey  = "kubelet-client.key"
	FrontProxyCA      = "front-proxy-ca.crt"     // also in paths.KubeControllers
	FrontProxyCert    = "front-proxy-client.crt" // CN=front-proxy-client
	FrontProxyKey     = "front-proxy-client.key"
	ServiceAccountKey = "sa.key"          // private key, ECDSA P-256; also in paths.KubeControllers
	ServiceAccountPub = "sa.pub"          // public key
	Encryption        = "encryption.yaml" // an apiserver.config.k8s.io/v1 EncryptionConfiguration
	KMSFile           = "kms.json"        // type KMS in JSON; missing without a key manager
	KMSSocket         = "kms.sock"        // socket of the plugin for the key manager
	EtcdCA            = "etcd-ca.crt"
	EtcdPeerCert      = "etcd-peer.crt" // serving and client certificate for peers
	EtcdPeerKey       = "etcd-peer.key"
	// Authentication is an apiserver.config.k8s.io/v1 AuthenticationConfiguration.
	Authentication = "authentication.yaml"
	// Authorization is an apiserver.config.k8s.io/v1 AuthorizationConfiguration.
	Authorization = "authorization.yaml"
	// Revoked is a trust.RevokedSet in JSON.
	Revoked = "revoked.json"

	// The files in paths.KubeControllers follow.

	SigningCA           = "signing-ca.crt"         // the CA that issues new certificates
	CAKey               = "ca.key"                 // key of SigningCA; signs CSRs of kubelets
	ControllersCert     = "controller-manager.crt" // CN=system:kube-controller-manager
	ControllersKey      = "controller-manager.key"
	SchedulerCert       = "scheduler.crt" // CN=system:kube-scheduler
	SchedulerKey        = "scheduler.key"
	ControllersServing  = "serving.crt" // for the controllers and the scheduler, on loopback
	ControllersServingK = "serving.key"
	// MetricsCert is the client certificate of the metrics server for the API server and kubelets.
	// Its CN is MetricsUser.
	MetricsCert = "metrics.crt"
	MetricsKey  = "metrics.key"
	// MetricsServing is the serving certificate of the metrics server. Its SAN is MetricsHost, the
	// name by which the aggregator of the API server calls the server.
	MetricsServing    = "metrics-serving.crt"
	MetricsServingKey = "metrics-serving.key"
	// AddonsCert is the client certificate of the component that reconciles the add-ons. Its CN is
	// AddonsUser. The component gives the service accounts of add-ons their rights, and
	// impersonates these accounts.
	AddonsCert = "addons.crt"
	AddonsKey  = "addons.key"
	Addons     = "addons.json" // list of Addon in JSON; may contain Secrets

	// The files in paths.KubeNode follow.

	KubeletCert       = "kubelet.crt" // CN=system:node:NAME, O=system:nodes
	KubeletKey        = "kubelet.key"
	KubeletServing    = "kubelet-serving.crt" // SANs: node name and addresses
	KubeletServingKey = "kubelet-serving.key"
	ProxyCert         = "kube-proxy.crt" // CN=system:kube-proxy
	ProxyKey          = "kube-proxy.key"
	DNSCert           = "coredns.crt" // CN=orlop:coredns
	DNSKey            = "coredns.key"
	// NodeAgentCert is the client certificate of the agent of the node (CN=orlop:node-agent:NAME,
	// O=orlop:node-agents). The agent reads Nodes, Pods and NetworkPolicies, and writes the
	// EndpointSlice of the cluster DNS.
	NodeAgentCert  = "node-agent.crt"
	NodeAgentKey   = "node-agent.key"
	NodeLabelsFile = "node-labels.json" // type NodeLabels in JSON
	// BGPPasswordsFile is a JSON object. Its keys are the addresses of routers, and its values
	// their passwords. The file is missing if no router has a password.
	BGPPasswordsFile = "bgp-passwords.json"

	// MachineObjectsFile is in each of the three directories. It contains a MachineObjects in JSON.
	MachineObjectsFile = "machine-objects.json"
	// HostsFile is in paths.KubeControllers. It contains an inventory.Listing in JSON. machined
	// replaces it every few seconds.
	HostsFile = "hosts.json"
	// ClaimsFile is in paths.KubeControllers. It contains a claim.List in JSON. The controllers of
	// the leader replace it every few seconds, and machined reads it.
	ClaimsFile = "claims.json"
	// ClusterReportFile is in paths.KubeControllers. It contains a ClusterReport in JSON. machined
	// replaces it every minute while the controllers of its machine are the leader.
	ClusterReportFile = "cluster-report.json"
)

// MetricsUser is the user of the metrics server, which reads the resource usage of nodes and pods
// from kubelets. MetricsHost is the DNS name of the metrics server.
const (
	MetricsUser = "orlop:metrics"
	MetricsHost = "orlop-metrics.kube-system.svc"
)

// ProblemPrefix is the prefix of the detail of a component that is ready but has a problem.
// machined then reports the machine as unhealthy, but does not restart the process of the
// component.
const ProblemPrefix = "problem: "

// Extensions is the name of the component that reports objects, such as webhooks, by which users
// have blocked the Kubernetes API (orchestrator/extensions).
const Extensions = "extensions"

// AddonsUser is the user that reconciles the add-ons of the configuration.
const AddonsUser = "orlop:addons"

// BreakGlassUser is the user with which an admin repairs the cluster over the management API. It is
// in the group system:masters. Its certificate is valid for a few minutes.
const BreakGlassUser = "orlop:break-glass"

const (
	// AddonsNamespace holds the records of the add-ons and their service accounts.
	AddonsNamespace = "orlop-addons"
	// ReservedPrefix is the prefix of the names of the namespaces that only add-ons can create.
	ReservedPrefix = "orlop-"
)

// The identity of the agent of a node. Its user is NodeAgentUser followed by the name of the node.
// The API server restricts the agent to objects of its node.
const (
	NodeAgentUser  = "orlop:node-agent:"
	NodeAgentGroup = "orlop:node-agents"
)
