package bootstrap

// NodeTaintsAccount is the service account in kube-system that sets the configured taints of Nodes
// (package nodelabels).
const NodeTaintsAccount = "orlop-node-taints"
