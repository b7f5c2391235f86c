// Package drain is the operation that empties a node before its machine is away: before an
// upgrade, a rollback, a reboot, a shutdown, a reset, and before the removal of another machine
// from the cluster (docs/decisions/0102-drain.md).
//
// A drain has a policy and a deadline (Machine.spec.upgrade.drain, or the caller's), a progress
// (topic "drain": the pods that are left, and the PodDisruptionBudget that blocks each), and an
// undo. It continues if the caller disconnects and if the API server is away. A caller can give the
// drain up.
//
// The orchestrator evicts the pods (orchestrator/drain). decide.go, which is pure, decides the
// result. operations.go has the drains of the operations.
package drain
