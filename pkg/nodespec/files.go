package nodespec

// The names of the credential files in each process's folder (paths.KubeAPI, paths.KubeControllers,
// paths.KubeNode). All are PEM except Encryption (an apiserver.config.k8s.io/v1
// EncryptionConfiguration). Certificates are ECDSA P-256. machined renews them in place (write to a
// temporary name, rename), so a reader must reload them when they change.
const (
	// In every folder: the Kubernetes CA that issues, and those that are accepted beside it.
	CA = "ca.crt"

	// In paths.KubeAPI.
	// serving; SANs: localhost, kubernetes[.default[.svc[.DOMAIN]]], first service address, node
	// addresses, endpoint
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
	EtcdCA            = "etcd-ca.crt"
	EtcdPeerCert      = "etcd-peer.crt" // serving and client, for peers
	EtcdPeerKey       = "etcd-peer.key"
	// an apiserver.config.k8s.io/v1 AuthenticationConfiguration
	Authentication = "authentication.yaml"
	// an apiserver.config.k8s.io/v1 AuthorizationConfiguration
	Authorization = "authorization.yaml"
	// a trust.Refused: client certificates that count no more
	Revoked = "revoked.json"

	// In paths.KubeControllers.
	SigningCA           = "signing-ca.crt"         // the one CA that issues
	CAKey               = "ca.key"                 // its key; signs kubelet CSRs
	ControllersCert     = "controller-manager.crt" // CN=system:kube-controller-manager
	ControllersKey      = "controller-manager.key"
	SchedulerCert       = "scheduler.crt" // CN=system:kube-scheduler
	SchedulerKey        = "scheduler.key"
	ControllersServing  = "serving.crt" // serving on loopback for both
	ControllersServingK = "serving.key"
	MetricsCert         = "metrics.crt" // CN=orlop:metrics; towards the API server and kubelets
	MetricsKey          = "metrics.key"
	// serving; SAN: the name by which the API server's aggregator knows it
	MetricsServing    = "metrics-serving.crt"
	MetricsServingKey = "metrics-serving.key"
	// CN=orlop:addons; gives add-ons their rights, and acts as each of them
	AddonsCert = "addons.crt"
	AddonsKey  = "addons.key"
	Addons     = "addons.json" // a list of Addon; it may hold Secrets

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
	NodeLabelsFile = "marks.json" // NodeLabels
)

// MetricsUser asks kubelets what nodes and pods use, and serves the answers as MetricsHost.
const (
	MetricsUser = "orlop:metrics"
	MetricsHost = "orlop-metrics.kube-system.svc"
)

// ProblemPrefix begins the detail of a component that is ready and has something wrong about it: its
// process is not restarted for it, and the machine is not healthy.
const ProblemPrefix = "trouble: "

// Extensions is the component that says which objects of users hold up the API
// (orchestrator/extensions).
const Extensions = "extensions"

// AddonsUser keeps the add-ons of the configuration.
const AddonsUser = "orlop:addons"

// BreakGlassUser is an administrator's repair of the cluster over the management API, in the group
// system:masters. Its certificate lasts minutes.
const BreakGlassUser = "orlop:break-glass"

const (
	// AddonsNamespace is where it keeps what it knows about them, and the namespace of the accounts
	// as which they act.
	AddonsNamespace = "orlop-addons"
	// ReservedPrefix begins names of namespaces that nobody but add-ons can make.
	ReservedPrefix = "orlop-"
)

// The identity of a node's agent: its user is NodeAgentUser and the node's name. The API server
// keeps it to what is its node's.
const (
	NodeAgentUser  = "orlop:node-agent:"
	NodeAgentGroup = "orlop:node-agents"
)
