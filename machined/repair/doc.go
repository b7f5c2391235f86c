// Package repair performs the steps of a repair on this machine. The controllers order these steps
// (docs/decisions/0108-health-and-repair.md): package pkg/disruption/repair decides on a step, and
// orchestrator/machineobject passes it to the machine.
//
// Each step passes the same checks as the call of an operator, and no step is forced. The package
// also refuses steps soon after a boot, because a faulty program in the cluster could otherwise
// reboot the machine in a loop.
package repair
