// Package repair performs the steps of repairs that the controllers order
// (docs/decisions/0108-health-and-repair.md). Package pkg/disruption/repair decides on the steps;
// orchestrator/machineobject passes them to the machine.
//
// Each step has the checks of an operator's call, and no step is forced. The package protects the
// machine from a loop of reboots by any program in the cluster.
package repair
