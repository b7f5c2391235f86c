package bootstrap

// NodeTaintsAccount is the service account in kube-system by which Nodes get the taints of their
// configurations (package nodemarks).
const NodeTaintsAccount = "orlop-node-taints"
