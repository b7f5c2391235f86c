// Package disruption asks the cluster before the machine is upgraded, rolled back, rebooted, shut
// down or reset for an operator (docs/decisions/0087-disruptions.md). Package pkg/disruption
// decides; this package runs the commands of the orchestrator that observe the cluster, holds the
// turn of the machine, renews it, and returns it when the machine is healthy again.
//
// It does not ask before a shutdown that no operator requests: the reboot of an upgrade or a
// rollback for which it has asked before, the rollback of a failed version, the power button, a
// signal.
package disruption
