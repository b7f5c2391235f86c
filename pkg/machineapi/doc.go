// Package machineapi has the types of the kinds that describe the machines of a cluster as objects
// of Kubernetes:
//
//   - OrlopCluster and OrlopMachine implement the infrastructure half of the v1beta2 contract of
//     Cluster API.
//   - OrlopHost is a machine of the inventory: it waits for a configuration, or it is off.
//   - OrlopMachineTemplate describes the workers that waiting machines become.
//   - OrlopApprovalRule approves waiting machines by their serial numbers.
//   - ClusterHealth and Component describe the state of the whole cluster.
//
// Package controlplane has the type of OrlopControlPlane, the control-plane half of the contract.
// The types of Cluster, Machine, MachineSet, MachineDeployment and MachineHealthCheck are types of
// Cluster API (sigs.k8s.io/cluster-api/api/core/v1beta2). Package definitions has the definitions
// of all kinds. The reasons are in docs/decisions/0090-machine-objects.md, 0103-inventory.md,
// 0107-claims.md, 0108-health-and-repair.md, 0120-approval-rules.md and 0125-power-of-claims.md.
//
// The controllers write the specifications. An operator writes only the fields that the comments
// assign to an operator, and the objects that an operator creates. A machine writes only the status
// of the OrlopMachine with its own name.
//
// `kubectl explain` shows the comments of the types.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
// +versionName=v1alpha1
package machineapi

//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen object paths=./...
//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen crd paths=./... output:crd:dir=definitions
//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen crd paths=sigs.k8s.io/cluster-api/api/core/v1beta2 output:crd:dir=definitions
//go:generate sh -c "cd definitions && rm -f cluster.x-k8s.io_clusterclasses.yaml cluster.x-k8s.io_machinedrainrules.yaml cluster.x-k8s.io_machinepools.yaml"
