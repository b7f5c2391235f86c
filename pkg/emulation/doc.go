// Package emulation decides about the two phases of a new minor version of Kubernetes
// (docs/decisions/0096-two-phases.md).
//
// The level of a cluster is the minor version of Kubernetes that its API has, and that its data can
// be read with. A control-plane machine with a newer version emulates the level: API server,
// controllers and scheduler start with --emulated-version, and etcd holds its storage version. So
// each machine can return to the version of the level. When all control-plane machines run a newer
// version, an operator raises the level. After that no machine returns.
//
// The package is pure. orchestrator/etcd stores the level and observes the members; the JSON form
// of Minor is part of the stored level.
package emulation
