package nodespec

// NodeLabels are what the configuration of the machine gives its Node. The file NodeLabelsFile holds them,
// beside the Spec: they may change while the components run.
type NodeLabels struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []Taint           `json:"taints,omitempty"` // no two have the same key and effect
}

// Taint is one of a Node (core/v1).
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// TaintsPending is the key of the taint with which the kubelet makes the Node of a machine whose
// configuration has taints: it keeps pods off until the control plane has put those there (package
// nodemarks).
const TaintsPending = "orlop.dev/taints-pending"

// TaintsSet is the annotation of a Node that holds the taints which the control plane has set for
// the configuration (package nodemarks). Those it takes away again, so no kubelet may write it
// (package kubeapiserver).
const TaintsSet = "orlop.dev/node-taints-set"
