// Package skew reads the versions of Kubernetes in the cluster, for the check of the version skew
// (docs/decisions/0087-disruptions.md).
//
// List is a command of the orchestrator. On a control-plane machine it uses the identity of the
// process "controllers", and lists the Nodes and the versions of the other API servers. On a worker
// it uses the identity of the kubelet, and reads only the versions of the API servers. Run is a
// component of the process "api" and warns of machines with an older version. Package disruption
// makes the decisions.
package skew
