package machineapi

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace is the namespace of all objects that describe machines. It is not kube-system, so that
// a user can get rights on machines without rights on the Secrets of the system.
const Namespace = "orlop-machines"

// GroupVersion is the API group and version of the kinds of this package.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}

// The resources of the kinds of this package.
var (
	OrlopClusters = GroupVersion.WithResource("orlopclusters")
	OrlopMachines = GroupVersion.WithResource("orlopmachines")
	OrlopHosts    = GroupVersion.WithResource("orlophosts")

	OrlopMachineTemplates = GroupVersion.WithResource("orlopmachinetemplates")
	OrlopApprovalRules    = GroupVersion.WithResource("orlopapprovalrules")
	ClusterHealths        = GroupVersion.WithResource("clusterhealths")
	Components            = GroupVersion.WithResource("components")
)

// The values of OrlopMachine.spec.role.
const (
	RoleControlPlane = "controlplane"
	RoleWorker       = "worker"
)

// The types of the conditions of an OrlopMachine, which the machine writes.
const (
	// ConditionReady is true if all health checks that the machine makes of itself pass.
	ConditionReady = "Ready"
	// ConditionUpToDate is true if the machine runs the version of spec.release, or of spec.permit
	// if there is no spec.release. It is also true if neither is set.
	ConditionUpToDate = "UpToDate"
	// ConditionUpdating is true from the fetch of a release until the commit or the rollback of the
	// release.
	ConditionUpdating = "Updating"
	// ConditionRolledBack is true if the machine has rolled back the last release that it tried.
	// status.failed names this release.
	ConditionRolledBack = "RolledBack"
)

// ReasonRefused is the reason of ConditionUpdating after the machine has refused to change to a
// release. The machine tries the release again as long as it has a permit.
const ReasonRefused = "Refused"

// The values of RepairStatus.phase.
const (
	RepairStarted = "Started"
	RepairRefused = "Refused"
)

// ConditionFenced is the condition of a Machine that the controllers fence, or would fence if
// nothing prevented it. It is true from the confirmation that the machine is off until the machine
// has returned. A machine that needs no fence does not have this condition.
const ConditionFenced = "Fenced"

// PowerSecretType is the type of a Secret in namespace kube-system with the address and the
// credentials of a power switch. The controllers use only Secrets of this type for power switches.
const PowerSecretType = "orlop.dev/power-switch"

// PowerOff is the value of MachinePower.AfterFencing by which a machine stays off after a fence.
const PowerOff = "Off"

// OnDemandAnnotation is the annotation of a MachineDeployment by which the controllers scale it
// between its minimum and maximum. Its value is "true". The annotations of cluster-autoscaler alone
// change nothing, because cluster-autoscaler may run in the cluster.
const OnDemandAnnotation = "orlop.dev/power-on-demand"

// RememberedAnnotation is the annotation of a MachineSet with what the controllers remember about a
// MachineDeployment that they scale: the shape of its machines, and pods that they did not help.
const RememberedAnnotation = "orlop.dev/power-on-demand-remembered"

// The annotations of a MachineDeployment with its minimum and maximum of machines.
// Cluster-autoscaler's provider for Cluster API has the same annotations.
const (
	MinSizeAnnotation = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
	MaxSizeAnnotation = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
)

// The annotations of a MachineDeployment with the properties of a machine that it would add:
// quantities, and lists with commas of KEY=VALUE and KEY=VALUE:EFFECT. The provider of
// cluster-autoscaler for Cluster API has the same annotations. They are used until a machine of the
// MachineDeployment was ready. Without them, the controllers use an estimate from the inventory.
const (
	CapacityCPUAnnotation    = "capacity.cluster-autoscaler.kubernetes.io/cpu"
	CapacityMemoryAnnotation = "capacity.cluster-autoscaler.kubernetes.io/memory"
	CapacityLabelsAnnotation = "capacity.cluster-autoscaler.kubernetes.io/labels"
	CapacityTaintsAnnotation = "capacity.cluster-autoscaler.kubernetes.io/taints"
)

// KeepAnnotation is the annotation with which a Machine or a Node is excluded from the removal by
// power on demand. Its value is "true". Cluster-autoscaler has the same annotation for Nodes.
const KeepAnnotation = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

// MarkedOnDemand is the value of Cluster API's annotation delete-machine with which power on demand
// marks a Machine before it removes the machine. MachineSets remove marked Machines first, whatever
// the value is.
const MarkedOnDemand = "orlop-power-on-demand"

// ConditionOnDemand is the condition of a MachineDeployment that the controllers scale between its
// minimum and maximum. It is False if they cannot scale it, or if pods wait that they cannot help.
const ConditionOnDemand = "PowerOnDemand"

// The types of the conditions of an OrlopHost, which the controllers write.
const (
	// ConditionWaiting is true while the machine waits for a configuration and sends its inventory.
	// While it is false, its reason is Silent, or the state of a machine with a power switch, such
	// as Off.
	ConditionWaiting = "Waiting"
	// ConditionApproved is true if spec.approval approves the fingerprint of the machine. If the
	// approval comes from a rule, the rule must still approve the machine, too.
	ConditionApproved = "Approved"
)

// ConditionValid is the type of the condition of an OrlopApprovalRule, which the controllers write.
// It is true if the rule can approve machines.
const ConditionValid = "Valid"

// ErasureNotConfirmed is the value of HostStandby.Erasure.
const ErasureNotConfirmed = "NotConfirmed"

// ConditionMessage shortens a text to 1024 bytes of valid UTF-8, for the message of a condition.
func ConditionMessage(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), 1024)], "")
}

// AddToScheme adds the kinds of this package to a scheme. It always returns nil.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OrlopCluster{}, &OrlopClusterList{}, &OrlopMachine{}, &OrlopMachineList{}, &OrlopHost{}, &OrlopHostList{},
		&ClusterHealth{}, &ClusterHealthList{}, &Component{}, &ComponentList{}, &OrlopMachineTemplate{}, &OrlopMachineTemplateList{},
		&OrlopApprovalRule{}, &OrlopApprovalRuleList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// HostName returns the name of the OrlopHost of the machine with a fingerprint ("sha256:…"): the
// first 32 hexadecimal digits. They are 128 bits of a hash, so no machine can create a key that
// leads to the name of another machine.
func HostName(fingerprint string) string {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return digits[:min(len(digits), 32)]
}

// ProviderID returns the ID of a machine in Node.spec.providerID, Machine.spec.providerID and
// OrlopMachine.spec.providerID. It depends only on the names of the cluster and the machine.
func ProviderID(cluster, machine string) string { return "orlop:///" + cluster + "/" + machine }
