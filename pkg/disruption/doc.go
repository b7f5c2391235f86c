// Package disruption decides whether a machine may be upgraded, rolled back, rebooted, shut down or
// reset at present (docs/decisions/0087-disruptions.md). An operation is refused if
//
//   - a kubelet would become newer than an API server, or older than Kubernetes supports, or API
//     servers would differ by more than a minor version (skew.go);
//   - etcd would lose its quorum, another control-plane machine is down, or another control-plane
//     machine has the turn (decide.go).
//
// The turn is a key with a lease in etcd. A control-plane machine takes the turn before it shuts
// down, and returns the turn when it is healthy again. So if two operators call two machines at the
// same time, only the first call proceeds.
//
// The package is pure. orchestrator/etcd and orchestrator/skew observe the cluster and take the
// turn; machined/disruption calls them. The JSON form of the types is the interface between
// machined and the orchestrator.
package disruption
