// Package emulation decides about an upgrade to a new minor version of Kubernetes, which has two
// phases (docs/decisions/0096-two-phases.md): all machines get the new version, and then the level
// is raised.
//
// The level of a cluster is the minor version of Kubernetes with which the cluster serves its API
// and stores its data. A control-plane machine with a newer version emulates the level: the API
// server, the controllers and the scheduler start with --emulated-version, and etcd does not raise
// its storage version. So each machine can roll back to the version of the level. When all
// control-plane machines run a newer version, an operator can raise the level. After that, no
// machine can roll back to the old version.
//
// The package is pure. orchestrator/etcd stores the level and observes the members; the JSON form
// of Minor is part of the stored level.
package emulation
