package machineapi

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace is the namespace of all objects that describe machines. It is not kube-system, so that
// an operator can grant rights on machines without rights on the Secrets of the system.
const Namespace = "orlop-machines"

// GroupVersion is the group and version of the kinds of this package.
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

// The roles of a machine in OrlopMachine.spec.role.
const (
	RoleControlPlane = "controlplane"
	RoleWorker       = "worker"
)

// The types of the conditions of an OrlopMachine. The machine writes all of them.
const (
	// ConditionReady is true if all checks of the machine's health pass.
	ConditionReady = "Ready"
	// ConditionUpToDate is true if the machine runs the release of spec.release and of its permit,
	// as far as they are set.
	ConditionUpToDate = "UpToDate"
	// ConditionUpdating is true from the fetch of a release until its commit or rollback.
	ConditionUpdating = "Updating"
	// ConditionRolledBack is true if the last release that the machine tried did not become
	// healthy; status.failed names the release.
	ConditionRolledBack = "RolledBack"
)

// ReasonRefused is the reason of ConditionUpdating after the machine has refused a permitted
// release. It tries again while it has a permit.
const ReasonRefused = "Refused"

// The phases of RepairStatus.
const (
	RepairStarted = "Started"
	RepairRefused = "Refused"
)

// The types of the conditions of an OrlopHost. The controllers write them.
const (
	// ConditionWaiting is true if the machine sends its inventory at present.
	ConditionWaiting = "Waiting"
	// ConditionApproved is true if spec.approval names the fingerprint of the machine.
	ConditionApproved = "Approved"
)

// ConditionValid is the condition of an OrlopApprovalRule that can approve machines. The
// controllers write it.
const ConditionValid = "Valid"

// ConditionMessage returns the start of a text, at most 1024 bytes, for the message of a condition.
func ConditionMessage(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), 1024)], "")
}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OrlopCluster{}, &OrlopClusterList{}, &OrlopMachine{}, &OrlopMachineList{}, &OrlopHost{}, &OrlopHostList{},
		&ClusterHealth{}, &ClusterHealthList{}, &Component{}, &ComponentList{}, &OrlopMachineTemplate{}, &OrlopMachineTemplateList{},
		&OrlopApprovalRule{}, &OrlopApprovalRuleList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// HostName returns the name of the OrlopHost of a machine with a fingerprint ("sha256:…"): the
// first 32 digits. They are 128 bits, so no machine can make a key with the name of another
// machine.
func HostName(fingerprint string) string {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return digits[:min(len(digits), 32)]
}

// ProviderID returns the identification of a machine in Node.spec.providerID,
// Machine.spec.providerID and OrlopMachine.spec.providerID: a constant of the names of the cluster
// and the machine.
func ProviderID(cluster, machine string) string { return "orlop:///" + cluster + "/" + machine }
