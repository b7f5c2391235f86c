// Package skew reads the versions of Kubernetes in the cluster, for the check of the version
// skew (docs/decisions/0087-disruptions.md). List is a command of the orchestrator: a control-plane
// machine reads its own process's identity and lists the Nodes and the other API servers; a worker,
// with the identity of its kubelet, reads the versions of the API servers only. Run is a component
// of the process "api", which warns of machines with an older version. Package disruption decides.
package skew
