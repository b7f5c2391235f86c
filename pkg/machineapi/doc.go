// Package machineapi has the types of the kinds that describe the machines of a cluster as objects
// of Kubernetes: OrlopCluster and OrlopMachine, the infrastructure half of the v1beta2 contract of
// Cluster API; OrlopHost, a machine that waits for a configuration; OrlopMachineTemplate, the
// description of its future as a worker; OrlopApprovalRule, the approval of waiting machines by
// their serial numbers; ClusterHealth and Component, the state of the whole
// cluster. Package controlplane has OrlopControlPlane. The kinds Cluster, Machine, MachineSet,
// MachineDeployment and MachineHealthCheck are upstream's
// (sigs.k8s.io/cluster-api/api/core/v1beta2). Package definitions has the definitions of all kinds;
// docs/decisions/0090-machine-objects.md, 0103-inventory.md, 0107-claims.md,
// 0108-health-and-repair.md and 0120-approval-rules.md have the reasons.
//
// The controllers write every specification except the fields of an operator, which the comments
// name. A machine writes only the status of the OrlopMachine with its own name.
//
// The comments of the types are the texts of `kubectl explain`.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
// +versionName=v1alpha1
package machineapi

//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen object paths=./...
//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen crd paths=./... output:crd:dir=definitions
//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen crd paths=sigs.k8s.io/cluster-api/api/core/v1beta2 output:crd:dir=definitions
//go:generate sh -c "cd definitions && rm -f cluster.x-k8s.io_clusterclasses.yaml cluster.x-k8s.io_machinedrainrules.yaml cluster.x-k8s.io_machinepools.yaml"
