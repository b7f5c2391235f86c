// Package nodelabels sets the labels and taints of Nodes that the configurations of their machines
// specify (Machine.spec.node). It records which labels and taints it has set, and changes and
// removes only these.
//
// The kubelet sets the labels of a new Node (package kubelet). Afterwards the component on the node
// (labels.go) maintains them with the kubelet's identity. The admission plugin NodeRestriction
// limits the labels that this identity may set, and forbids changes of taints. So the component on
// the node publishes the configured taints in an annotation, and a component in the process of the
// controllers (taints.go) sets them. It does not change taints that another client has set. The
// kubelet creates its Node with an additional taint, which keeps pods away until the configured
// taints are set.
//
// Annotations of the Node record the labels and taints that this package has set, in the same
// request that sets them. Pure functions decide about changes (step.go).
//
// docs/decisions/0043-node-labels.md gives the reasons.
package nodelabels
