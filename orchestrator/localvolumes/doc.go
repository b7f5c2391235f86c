// Package localvolumes makes the volumes of claims out of the nodes' own disks: folders of DATA,
// each limited by a project quota (pkg/projectquota), where the scheduler wants the pod that asks.
//
// It has two halves, as a CSI driver has. The controller, beside the other controllers, decides
// everything: which claim gets a volume on which node, what a node still has room for, what grows
// and what goes (step.go; run.go writes it). The node's half makes a volume's folder when the
// kubelet needs it for the first time, mounts it, raises its limit, and removes it when it is told
// to (store_linux.go, driver_linux.go, node_linux.go).
//
// They meet in three annotations of the Node (report.go): the node says what it has, by the
// kubelet's identity, which may write its own Node and no other; the controller says what is to be
// destroyed, and what is to be copied. Nothing is destroyed for not being listed somewhere, and no
// node reads or writes what is another's.
//
// A snapshot, and a volume that is made of a snapshot or of another volume, is a copy (snapshots.go
// decides, snapshotobjects.go writes it; copying_linux.go makes one at a time, copy_linux.go and
// pkg/copytree do it), of what nobody has mounted meanwhile.
//
// docs/decisions/0036-local-volumes.md and 0037-volume-snapshots.md say why it is as it is.
package localvolumes
