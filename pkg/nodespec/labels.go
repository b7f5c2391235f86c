package nodespec

// NodeLabels are the labels and taints that the configuration of the machine sets on its Node. The
// file NodeLabelsFile holds both. The file is separate from the Spec, because labels and taints may
// change while the components run.
type NodeLabels struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []Taint           `json:"taints,omitempty"` // each pair of key and effect occurs once
}

// Taint is a taint of a Node (core/v1).
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// TaintsPending is the key of a temporary taint. If the configuration has taints, the kubelet
// registers the Node with this taint. It keeps pods off the node until the control plane has set
// the configured taints (package nodelabels).
const TaintsPending = "orlop.dev/taints-pending"

// TaintsSet is an annotation of a Node. It lists the configured taints that the control plane has
// set on the Node (package nodelabels) and must remove later. Therefore no kubelet may write it
// (package kubeapiserver).
const TaintsSet = "orlop.dev/node-taints-set"
