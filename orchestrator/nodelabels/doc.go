// Package nodelabels gives Nodes the labels and taints that the configurations of their machines
// state (Machine.spec.node), changes them and takes them away, and touches none that somebody else
// has set.
//
// A new Node has its labels from the kubelet (package kubelet). After that the node's half keeps
// them (node.go), by the kubelet's identity, which upstream's admission keeps to what a machine may
// say of itself. It may not change taints, so it says in an annotation which the configuration
// states, and the half beside the controllers (taints.go) sets them, and no more than that: what a
// Node had before, or has from others, it neither changes nor takes for its own. The kubelet
// therefore makes the Node with a taint that only waits for that.
//
// What was set is remembered on the Node, in the same request that sets it. Pure functions decide
// (step.go).
//
// docs/decisions/0043-node-labels.md says why it is as it is.
package nodelabels
