// Package localvolumes provides volumes for PersistentVolumeClaims on the disks of the nodes. A
// volume is a directory of the DATA partition, on the node that the scheduler selects for the pod.
// A project quota limits its size (package projectquota).
//
// Like a CSI driver, the package has two parts. The controller runs in process "controllers" and
// makes all decisions: on which node a volume is created, how much space of a node is free, and
// which volumes grow or are deleted. step.go computes the decisions, and run.go writes them.
//
// The node part runs on each node. It creates the directory of a volume when the kubelet mounts the
// volume for the first time, mounts it, and raises its quota. On request of the controller it
// removes the directory (store_linux.go, driver_linux.go, node_linux.go).
//
// The parts communicate by three annotations of the Node (report.go). In one annotation, the node
// reports its volumes. It uses the identity of the kubelet, which can write only its own Node. In
// the two others, the controller lists the volumes to destroy and the copies to make. A node
// destroys only volumes that the controller has listed, and reads and writes only its own volumes.
//
// A node has one pool of volumes on DATA. It has a further pool on each volume of the machine that
// has its own StorageClass (pools.go). Each pool has its own annotations and its own file system.
//
// A snapshot is a copy of a volume. A volume can also be a copy of a snapshot or of another volume.
// snapshots.go decides about copies, and snapshotobjects.go writes the objects. On the node,
// copying_linux.go makes one copy at a time with copy_linux.go and pkg/copytree. The source cannot
// be mounted during the copy.
//
// The reasons are in docs/decisions/0036-local-volumes.md, 0037-volume-snapshots.md,
// 0072-volume-control.md, 0073-volume-copies.md, 0078-snapshot-space.md and 0104-volumes.md.
package localvolumes
