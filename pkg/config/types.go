package config

import "time"

// APIVersion is the only version of the documents.
const APIVersion = "orlop.dev/v1alpha1"

// Config is everything that a machine was told to be. Treat it as a value: nobody changes it after
// Parse.
type Config struct {
	// Machine says who the machine is. There is exactly one.
	Machine Machine
	// Cluster says which Kubernetes cluster the machine belongs to. It is nil when there is no such
	// document: then the machine runs without Kubernetes.
	Cluster *Cluster
	// Network is the machine's own network. Without a document every physical link is configured by
	// DHCPv4.
	Network Network
	// Addons are what the control plane keeps in the cluster, in the order of the documents. Their
	// names differ.
	Addons []Addon

	// origins holds where each written field stands. What is missing here was filled in by default.
	origins map[string]Origin
}

// Metadata names a document.
type Metadata struct {
	// Name of the object: lower-case letters, digits, "-" and ".", at most 63 characters (RFC
	// 1123).
	Name string `yaml:"name" jsonschema:"required"`
}

// Machine is the document of one machine.
type Machine struct {
	// Metadata names the machine. The name is the host name and the name of the Kubernetes node.
	Metadata Metadata `yaml:"metadata" jsonschema:"required"`
	// Spec says what the machine should be.
	Spec MachineSpec `yaml:"spec" jsonschema:"required"`
}

// MachineSpec says what one machine should be.
type MachineSpec struct {
	// Role of the machine in its cluster: controlplane runs etcd, the API server and the
	// controllers beside the kubelet; worker runs the kubelet only.
	Role Role `yaml:"role" jsonschema:"required"`
	// Trust says whose calls the machine answers.
	Trust Trust `yaml:"trust"`
	// Reserved is kept for the system; pods cannot have it.
	Reserved Reserved `yaml:"reserved"`
	// Sysctls are kernel parameters by their dotted names, set at boot and when they change. Those
	// that the system itself sets are refused.
	Sysctls map[string]string `yaml:"sysctls,omitempty"`
	// KernelModules are loaded at boot, in this order, besides those that the devices ask for.
	KernelModules []string `yaml:"kernelModules,omitempty"`
	// Disk says what may happen to the boot disk.
	Disk Disk `yaml:"disk"`
	// Install says which disk a machine that runs from memory installs itself to. It says nothing
	// to one that is installed.
	Install *Install `yaml:"install,omitempty"`
	// Join says how a worker becomes a member of its cluster. It says nothing to a control-plane
	// machine, which holds the cluster's keys.
	Join *Join `yaml:"join,omitempty"`
	// Node says what the machine's Kubernetes Node carries besides what Kubernetes and the system
	// give it.
	Node Node `yaml:"node"`
	// Upgrade says how the machine goes into a new version of the system, and how that has to prove
	// itself.
	Upgrade Upgrade `yaml:"upgrade"`
	// Registries are where images are pulled from, beside the registries that their names say:
	// mirrors, which are asked first, and registries with an authority or a user of their own.
	Registries []ImageRegistry `yaml:"registries,omitempty"`
	// Logging says where the machine's logs go besides the machine itself.
	Logging Logging `yaml:"logging"`
}

// Join says how a worker becomes a member of its cluster. `orlopctl nodes add` writes it.
type Join struct {
	// Ticket is a certificate that lets one machine with this name join, once and before it ends;
	// with its key. Without one the machine asks, and waits for an operator, where
	// Cluster.spec.joinRequests lets it.
	Ticket CertKey `yaml:"ticket,omitempty"`
	// From are the control-plane machines that are asked first, as addresses of their own, with or
	// without a port; at most 8. Those of Cluster.spec.controlPlanes are asked after them.
	From []string `yaml:"from" jsonschema:"required"`
}

// Role is what a machine does in its cluster.
type Role string

// The roles.
const (
	RoleControlPlane Role = "controlplane"
	RoleWorker       Role = "worker"
)

// Names lists the roles.
func (Role) Names() []string { return []string{string(RoleControlPlane), string(RoleWorker)} }

// Trust says whose calls the machine answers.
type Trust struct {
	// OperatorCAs sign the client certificates of operators. Empty: the CA that the image carries.
	// Not empty: exactly these; the image's CA counts only if it is in the list.
	OperatorCAs []Certificate `yaml:"operatorCAs,omitempty"`
}

// Reserved is the share of the machine that is kept for the system.
type Reserved struct {
	// Memory for the system's services, in KiB, MiB, GiB or TiB; at least 128MiB, and at most half
	// of the machine's.
	Memory Bytes `yaml:"memory"`
	// CPU for the system's services, in cores ("2") or thousandths of a core ("200m"); at least
	// 50m, and less than the machine has.
	CPU MilliCPU `yaml:"cpu"`
}

// DefaultUpgradeDeadline is Upgrade.Deadline of a machine without a configuration.
const DefaultUpgradeDeadline = 5 * time.Minute

// Upgrade says how the machine goes into a new version of the system, and how that has to prove
// itself.
type Upgrade struct {
	// Deadline is how long after the start of its first process a new version may take until
	// everything is healthy, 1m to 1h. A version that takes longer is given up, and the machine
	// goes back to the one before.
	Deadline Duration `yaml:"deadline"`
	// Drain says how pods leave the machine before it goes into another version, goes back, or is
	// reset.
	Drain Drain `yaml:"drain"`
}

// Drain moves the pods away from a machine that goes down for an upgrade. Pods of DaemonSets and
// static pods stay.
type Drain struct {
	// Policy says what happens to a pod that its PodDisruptionBudget does not let go: timeout waits
	// for it, until the time is up; respect gives the upgrade up then; force deletes the pod at
	// once. With none no pod is moved: a cluster of one machine has no place for them, and they
	// come back where they were.
	Policy DrainPolicy `yaml:"policy"`
	// Timeout is how long all pods together may take to leave, 1s to 1h. Pods that are still there
	// then end with the machine.
	Timeout Duration `yaml:"timeout"`
}

// DrainPolicy is how much a disruption budget counts.
type DrainPolicy string

// The policies of Drain.
const (
	DrainNone    DrainPolicy = "none"
	DrainTimeout DrainPolicy = "timeout"
	DrainRespect DrainPolicy = "respect"
	DrainForce   DrainPolicy = "force"
)

// Names lists the policies.
func (DrainPolicy) Names() []string {
	return []string{string(DrainNone), string(DrainTimeout), string(DrainRespect), string(DrainForce)}
}

// Disk says what may happen to the boot disk.
type Disk struct {
	// WipeForeign allows the machine to remove partitions from the boot disk that are not Orlop's.
	// Without it the machine refuses such a disk.
	WipeForeign bool `yaml:"wipeForeign"`
}

func (m *Machine) defaults() {
	// An idle control plane takes about 350 MB of anonymous memory (six processes, measured); a
	// workload must not have it.
	m.Spec.Reserved = Reserved{Memory: 512 << 20, CPU: 200}
	m.Spec.Upgrade = Upgrade{Deadline: Duration(DefaultUpgradeDeadline), Drain: Drain{Policy: DrainNone, Timeout: Duration(5 * time.Minute)}}
}

// enum is a string type with a fixed set of names.
type enum interface{ Names() []string }

// defaulter is a type that is not all zero when its document says nothing. The decoder calls
// defaults before it writes into a value.
type defaulter interface{ defaults() }
