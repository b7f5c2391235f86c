package machineapi

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace is the namespace of all objects that describe machines. It is not kube-system, so that
// an operator can grant rights on machines without rights on the Secrets of the system.
const Namespace = "orlop-machines"

// GroupVersion is the group and version of OrlopCluster and OrlopMachine.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}

// The resources of the kinds of this package.
var (
	OrlopClusters = GroupVersion.WithResource("orlopclusters")
	OrlopMachines = GroupVersion.WithResource("orlopmachines")
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

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OrlopCluster{}, &OrlopClusterList{}, &OrlopMachine{}, &OrlopMachineList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// ProviderID returns the identification of a machine in Node.spec.providerID,
// Machine.spec.providerID and OrlopMachine.spec.providerID: a constant of the names of the cluster
// and the machine.
func ProviderID(cluster, machine string) string { return "orlop:///" + cluster + "/" + machine }
