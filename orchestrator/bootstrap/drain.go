package bootstrap

// DrainAccount is the service account in kube-system that drains the Node of a machine before its
// removal from the cluster (package drain).
const DrainAccount = "orlop-drain"
