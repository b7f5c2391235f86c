package config

import "time"

// APIVersion is the only version of the documents.
const APIVersion = "orlop.dev/v1alpha1"

// Config is the configuration of a machine. It is immutable after Parse.
type Config struct {
	// Machine is the machine's own document. There is exactly one.
	Machine Machine
	// Cluster describes the machine's Kubernetes cluster. Without the document it is nil, and the
	// machine runs without Kubernetes.
	Cluster *Cluster
	// Network is the machine's own network. Without a document every physical link is configured by
	// DHCPv4.
	Network Network
	// Addons are the add-ons in the order of the documents. Their names are unique.
	Addons []Addon

	// origins contains the source position of each written field. Other fields are defaults.
	origins map[string]Origin
}

// Metadata names a document.
type Metadata struct {
	// Name of the object: lower-case letters, digits, "-" and ".", at most 63 characters (RFC
	// 1123).
	Name string `yaml:"name" jsonschema:"required"`
}

// Machine is the document of a machine.
type Machine struct {
	// Metadata names the machine. The name is the host name and the name of the Kubernetes node.
	Metadata Metadata `yaml:"metadata" jsonschema:"required"`
	// Spec describes the machine.
	Spec MachineSpec `yaml:"spec" jsonschema:"required"`
}

// MachineSpec describes a machine.
type MachineSpec struct {
	// Role of the machine in its cluster: controlplane runs etcd, the API server, the controllers
	// and the kubelet; worker runs only the kubelet.
	Role Role `yaml:"role" jsonschema:"required"`
	// Trust configures the CAs of API clients.
	Trust Trust `yaml:"trust"`
	// Reserved is the capacity for the system, which pods cannot use.
	Reserved Reserved `yaml:"reserved"`
	// Sysctls are kernel parameters by their dotted names, set at boot and after a change.
	// Parameters that the system sets itself are rejected.
	Sysctls map[string]string `yaml:"sysctls,omitempty"`
	// KernelModules are loaded at boot, in this order, in addition to the modules for the devices.
	KernelModules []string `yaml:"kernelModules,omitempty"`
	// Disk permits changes of the system disk.
	Disk Disk `yaml:"disk"`
	// Install selects the disk for the installation of a machine that runs from memory. It has no
	// effect on an installed machine.
	Install *Install `yaml:"install,omitempty"`
	// Join configures how a worker joins its cluster. It has no effect on a control-plane machine,
	// which has the cluster's keys.
	Join *Join `yaml:"join,omitempty"`
	// Node configures labels and taints of the machine's Kubernetes Node.
	Node Node `yaml:"node"`
	// Upgrade configures the transition to a new version of the system.
	Upgrade Upgrade `yaml:"upgrade"`
	// Registries are mirrors, which are used first, and registries with their own CA or user. Other
	// registries are used according to the names of images.
	Registries []ImageRegistry `yaml:"registries,omitempty"`
	// Logging configures log shipping.
	Logging Logging `yaml:"logging"`
}

// Join configures how a worker joins its cluster. `orlopctl nodes add` writes it.
type Join struct {
	// Ticket is a join ticket: a certificate with its key, with which a machine of this name can
	// join once before its expiry. Without it, the machine sends a join request and waits for an
	// operator, if Cluster.spec.joinRequests permits it.
	Ticket CertKey `yaml:"ticket,omitempty"`
	// From are the addresses of the control-plane machines to contact first, with an optional port;
	// at most 8. The machines of Cluster.spec.controlPlanes follow.
	From []string `yaml:"from" jsonschema:"required"`
}

// Role is the role of a machine in its cluster.
type Role string

// The roles.
const (
	RoleControlPlane Role = "controlplane"
	RoleWorker       Role = "worker"
)

// Names returns the roles.
func (Role) Names() []string { return []string{string(RoleControlPlane), string(RoleWorker)} }

// Trust configures the CAs of API clients.
type Trust struct {
	// OperatorCAs sign the client certificates of operators. The default is the CA in the image. A
	// list replaces it; then the image's CA is trusted only if the list contains it.
	OperatorCAs []Certificate `yaml:"operatorCAs,omitempty"`
}

// Reserved is the capacity for the system.
type Reserved struct {
	// Memory for the system's services, in KiB, MiB, GiB or TiB; at least 128MiB, and at most half
	// of the machine's memory.
	Memory Bytes `yaml:"memory"`
	// CPU for the system's services, in cores ("2") or thousandths of a core ("200m"); at least
	// 50m, and less than the machine has.
	CPU MilliCPU `yaml:"cpu"`
}

// DefaultUpgradeDeadline is Upgrade.Deadline of a machine without a configuration.
const DefaultUpgradeDeadline = 5 * time.Minute

// Upgrade configures the transition to a new version of the system.
type Upgrade struct {
	// Deadline is the time from the start of PID 1 in which all checks of a new version must become
	// healthy, 1m to 1h. After it, the machine rolls back to the previous version.
	Deadline Duration `yaml:"deadline"`
	// Drain configures how pods are evicted before an upgrade, a rollback or a reset.
	Drain Drain `yaml:"drain"`
}

// Drain configures how pods are evicted from a machine before an upgrade. Pods of DaemonSets and
// static pods stay.
type Drain struct {
	// Policy applies to a pod if its PodDisruptionBudget rejects the eviction: timeout waits until
	// the timeout; respect cancels the upgrade at the timeout; force deletes the pod at once. none
	// evicts no pods: a cluster with a single machine cannot run them elsewhere, and they restart
	// on the machine.
	Policy DrainPolicy `yaml:"policy"`
	// Timeout is the time for the eviction of all pods, 1s to 1h. The remaining pods end with the
	// shutdown of the machine.
	Timeout Duration `yaml:"timeout"`
}

// DrainPolicy defines how the drain respects PodDisruptionBudgets.
type DrainPolicy string

// The policies of Drain.
const (
	DrainNone    DrainPolicy = "none"
	DrainTimeout DrainPolicy = "timeout"
	DrainRespect DrainPolicy = "respect"
	DrainForce   DrainPolicy = "force"
)

// Names returns the policies.
func (DrainPolicy) Names() []string {
	return []string{string(DrainNone), string(DrainTimeout), string(DrainRespect), string(DrainForce)}
}

// Disk permits changes of the system disk.
type Disk struct {
	// WipeForeign permits the removal of foreign partitions from the system disk. Without it, the
	// machine rejects a disk with foreign partitions.
	WipeForeign bool `yaml:"wipeForeign"`
}

func (m *Machine) defaults() {
	// An idle control plane uses about 350 MB of anonymous memory (six processes, measured), which
	// workloads must not take.
	m.Spec.Reserved = Reserved{Memory: 512 << 20, CPU: 200}
	m.Spec.Upgrade = Upgrade{Deadline: Duration(DefaultUpgradeDeadline), Drain: Drain{Policy: DrainNone, Timeout: Duration(5 * time.Minute)}}
}

// enum is a string type with a fixed set of names.
type enum interface{ Names() []string }

// defaulter is a type with defaults other than the zero value. The decoder calls defaults before it
// decodes into a value.
type defaulter interface{ defaults() }
