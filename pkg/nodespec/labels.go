package nodespec

// NodeLabels are the labels and taints that the machine's configuration sets on its Node. They are
// in the file NodeLabelsFile, beside the Spec, because they may change while the components run.
type NodeLabels struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []Taint           `json:"taints,omitempty"` // no two with the same key and effect
}

// Taint is a taint of a Node (core/v1).
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// TaintsPending is the key of the taint with which the kubelet registers a Node if the
// configuration has taints. It keeps pods off until the control plane has set the configured taints
// (package nodelabels).
const TaintsPending = "orlop.dev/taints-pending"

// TaintsSet is the annotation with the taints that the control plane has set on a Node for the
// configuration (package nodelabels). The control plane removes these taints later, so no kubelet
// may write the annotation (package kubeapiserver).
const TaintsSet = "orlop.dev/node-taints-set"
