// Package nodelabels sets the labels and taints on Nodes that the configurations of their machines
// specify (Machine.spec.node). It changes and removes its own labels and taints and never touches
// foreign ones.
//
// The kubelet sets the labels of a new Node (package kubelet). Afterwards the node part maintains
// them (labels.go) with the kubelet's identity; upstream's admission restricts the rights of this
// identity to a machine's own statements. This identity may not change taints. So the node part
// publishes the configured taints in an annotation, and the part beside the controllers (taints.go)
// sets only these taints. It never changes or adopts taints that the Node had before or that come
// from other clients. So the kubelet creates the Node with a taint that keeps pods off until the
// configured taints are set.
//
// The Node itself records the managed labels and taints, in the same request that sets them. Pure
// functions decide (step.go).
//
// docs/decisions/0043-node-labels.md gives the reasons.
package nodelabels
