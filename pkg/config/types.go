package config

import (
	"slices"
	"time"
)

// APIVersion is the only supported apiVersion of documents.
const APIVersion = "orlop.dev/v1alpha1"

// Config is the configuration of a machine. It is immutable after Parse.
type Config struct {
	// Machine describes the machine itself. A configuration has exactly one Machine document.
	Machine Machine
	// Cluster describes the machine's Kubernetes cluster. Without a Cluster document, it is nil,
	// and the machine runs without Kubernetes.
	Cluster *Cluster
	// Network describes the machine's links, addresses and routes. Without a Network document,
	// every physical link is configured by DHCPv4.
	Network Network
	// Addons are the add-ons in the order of the documents. Their names are unique.
	Addons []Addon
	// Volumes are the volumes in the order of the documents. Their names are unique.
	Volumes []Volume

	// origins contains the source position of each field that the file sets, by the path of the
	// field. All other fields have their default.
	origins map[string]Origin
}

// Metadata names a document.
type Metadata struct {
	Name string `yaml:"name" jsonschema:"required"`
}

// Machine is the document of a machine.
type Machine struct {
	Metadata Metadata    `yaml:"metadata" jsonschema:"required"`
	Spec     MachineSpec `yaml:"spec" jsonschema:"required"`
}

// MachineSpec describes a machine.
type MachineSpec struct {
	Role          Role              `yaml:"role" jsonschema:"required"`
	Trust         Trust             `yaml:"trust"`
	Reserved      Reserved          `yaml:"reserved"`
	Sysctls       map[string]string `yaml:"sysctls,omitempty"`
	KernelModules []string          `yaml:"kernelModules,omitempty"`
	Disk          Disk              `yaml:"disk"`
	Install       *Install          `yaml:"install,omitempty"`
	Join          *Join             `yaml:"join,omitempty"`
	Node          Node              `yaml:"node"`
	Upgrade       Upgrade           `yaml:"upgrade"`
	Extensions    Extensions        `yaml:"extensions"`
	Egress        Egress            `yaml:"egress"`
	Registries    []ImageRegistry   `yaml:"registries,omitempty"`
	Logging       Logging           `yaml:"logging"`
	Metrics       *Metrics          `yaml:"metrics,omitempty"`
}

// Join configures how a worker joins its cluster. `orlopctl nodes add` writes it.
type Join struct {
	Ticket CertKey  `yaml:"ticket,omitempty"`
	From   []string `yaml:"from" jsonschema:"required"`
	// OnRemoval is what the worker does after it was removed from the cluster; empty means
	// RemovalKeep.
	OnRemoval OnRemoval `yaml:"onRemoval,omitempty"`
}

// OnRemoval is what a worker does after it was removed from its cluster and its pods have stopped.
type OnRemoval string

// The values of OnRemoval.
const (
	// RemovalKeep means that the worker retains its configuration and its data.
	RemovalKeep OnRemoval = "Keep"
	// RemovalWipe means that the worker erases its configuration, its key and its data, and powers
	// off.
	RemovalWipe OnRemoval = "Wipe"
)

// Names returns the values of OnRemoval.
func (OnRemoval) Names() []string { return []string{string(RemovalKeep), string(RemovalWipe)} }

// Role is the role of a machine in its cluster.
type Role string

// The roles.
const (
	RoleControlPlane Role = "controlplane"
	RoleWorker       Role = "worker"
)

// Names returns the roles.
func (Role) Names() []string { return []string{string(RoleControlPlane), string(RoleWorker)} }

// Trust configures the CAs of the client certificates that the management API accepts, and the
// approvers of calls.
type Trust struct {
	OperatorCAs []Certificate `yaml:"operatorCAs,omitempty"`
	Approvals   *Approvals    `yaml:"approvals,omitempty"`
}

// Reserved is the memory and processor time that is reserved for the system, not for pods.
type Reserved struct {
	Memory Bytes    `yaml:"memory"`
	CPU    MilliCPU `yaml:"cpu"`
	CPUs   CPUSet   `yaml:"cpus,omitempty"`
}

// DefaultUpgradeDeadline is the default of Upgrade.Deadline. It also applies to a machine without a
// configuration.
const DefaultUpgradeDeadline = 5 * time.Minute

// Upgrade configures the transition to a new version of the system.
type Upgrade struct {
	Deadline Duration `yaml:"deadline" limits:"1m to 1h"`
	Drain    Drain    `yaml:"drain"`
}

// Drain configures how pods are evicted from a machine before an upgrade, a rollback, a reboot, a
// shutdown or a reset. Pods of DaemonSets and static pods are not evicted.
type Drain struct {
	Policy  DrainPolicy `yaml:"policy"`
	Timeout Duration    `yaml:"timeout" limits:"1s to 1h"`
}

// DrainPolicy defines whether pods are evicted before an operation, and what happens if a
// PodDisruptionBudget rejects the eviction of a pod.
type DrainPolicy string

// The policies of Drain.
const (
	DrainNone    DrainPolicy = "none"    // no pod is evicted
	DrainTimeout DrainPolicy = "timeout" // at the timeout, the operation proceeds
	DrainRespect DrainPolicy = "respect" // at the timeout, the operation is canceled
	DrainForce   DrainPolicy = "force"   // the pod is deleted at once
)

// Names returns the policies.
func (DrainPolicy) Names() []string {
	return []string{string(DrainNone), string(DrainTimeout), string(DrainRespect), string(DrainForce)}
}

// Disk permits changes of the system disk.
type Disk struct {
	WipeForeign bool            `yaml:"wipeForeign"`
	Encryption  *DiskEncryption `yaml:"encryption,omitempty"`
}

// DiskEncryption configures the encryption of STATE and DATA.
type DiskEncryption struct {
	Unlock   []Unlock     `yaml:"unlock" jsonschema:"required"`
	Recovery DiskRecovery `yaml:"recovery"`
}

// DiskRecovery has the public keys to which the recovery keys of STATE and DATA are encrypted.
type DiskRecovery struct {
	Recipients []Recipient `yaml:"recipients,omitempty"`
}

// Unlock is a way in which a machine opens STATE and DATA at boot.
type Unlock string

// The values of Unlock.
const (
	UnlockTPM Unlock = "tpm" // the TPM releases the keys
	// UnlockNone means that the partitions are not encrypted. It is the explicit choice for a
	// machine without a TPM, and the health of the machine shows it.
	UnlockNone Unlock = "none"
)

// Names returns the values of Unlock.
func (Unlock) Names() []string { return []string{string(UnlockTPM), string(UnlockNone)} }

// EncryptsDisk reports whether the configuration requests encrypted partitions. It returns false
// for a nil configuration.
func (c *Config) EncryptsDisk() bool {
	return c != nil && c.Machine.Spec.Disk.Encryption != nil && slices.Contains(c.Machine.Spec.Disk.Encryption.Unlock, UnlockTPM)
}

func (m *Machine) defaults() {
	// The six processes of an idle control plane use about 350 MB of anonymous memory (measured).
	// Pods must not get this memory.
	m.Spec.Reserved = Reserved{Memory: 512 << 20, CPU: 200}
	m.Spec.Upgrade = Upgrade{Deadline: Duration(DefaultUpgradeDeadline), Drain: Drain{Policy: DrainNone, Timeout: Duration(5 * time.Minute)}}
}

// enum is a string type with a fixed set of names.
type enum interface{ Names() []string }

// defaulter is a type with defaults other than the zero value. The decoder calls defaults before it
// decodes into a value.
type defaulter interface{ defaults() }
