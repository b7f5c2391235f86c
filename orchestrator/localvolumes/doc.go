// Package localvolumes provides volumes for PersistentVolumeClaims on the nodes' own disks:
// directories of DATA, each with a project quota (package projectquota), on the node that the
// scheduler selects for the pod.
//
// Like a CSI driver, it has two parts. The controller, beside the other controllers, makes all
// decisions: the node of each claim's volume, the free space of each node, the growth and the
// deletion of volumes (step.go; run.go writes the changes). The node part creates a volume's
// directory when the kubelet needs it for the first time, mounts it, raises its quota, and removes
// it on the controller's request (store_linux.go, driver_linux.go, node_linux.go).
//
// The parts communicate by three annotations of the Node (report.go): the node reports its volumes
// with the kubelet's identity, which may write its own Node only; the controller lists the volumes
// to destroy and the copies to make. A volume is never destroyed because it is missing from a list,
// and no node reads or writes another node's volumes.
//
// A node has a pool of volumes on DATA, and a pool on each volume of its configuration with a
// StorageClass of its own (pools.go); each has its own annotations and its own file system.
//
// A snapshot, and a volume from a snapshot or another volume, is a copy (snapshots.go decides,
// snapshotobjects.go writes the objects; copying_linux.go makes one copy at a time with
// copy_linux.go and pkg/copytree). The source is not mounted meanwhile.
//
// docs/decisions/0036-local-volumes.md, 0037-volume-snapshots.md, 0072-volume-control.md,
// 0073-volume-copies.md, 0078-snapshot-space.md and 0104-volumes.md give the reasons.
package localvolumes
