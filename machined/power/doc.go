// Package power shuts the machine down in order, receives shutdown requests (signals to PID 1, the
// power button), and feeds the hardware watchdog while machined responds.
//
// A shutdown is a list of steps with deadlines (Plan). At the deadline of a step the shutdown
// continues with the next step, because it has to finish in any case. Mounts are removed by
// operations like those of a domain (PlanUnmount). If the last step, reboot(2), succeeds, it does
// not return.
//
// Controller performs the first request, and rejects a different one. The package does not depend
// on services or pods: machined passes the functions that stop them (Deps).
package power
