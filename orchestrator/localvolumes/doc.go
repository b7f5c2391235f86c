// Package localvolumes makes the volumes of claims out of the nodes' own disks: folders of DATA, each limited by a project quota
// (pkg/projectquota), where the scheduler wants the pod that asks.
//
// It has two halves, as a CSI driver has. The controller, beside the other controllers, decides everything: which claim gets a volume
// on which node, what a node still has room for, what grows and what goes (step.go; run.go writes it). The node's half makes a volume's
// folder when the kubelet needs it for the first time, mounts it, raises its limit, and removes it when it is told to (store_linux.go,
// driver_linux.go, node_linux.go).
//
// They meet in two annotations of the Node (report.go): the node says what it has, by the kubelet's identity, which may write its own
// Node and no other; the controller says which volumes are to be destroyed. Nothing is destroyed for not being listed somewhere, and no
// node reads or writes what is another's.
//
// docs/decisions/0036-local-volumes.md says why it is as it is.
package localvolumes
