// Package power shuts the machine down in order, receives shutdown requests (signals to PID 1, the
// power button), and feeds the hardware watchdog while machined is alive.
//
// A shutdown is a list of steps with deadlines (Plan). A late step is abandoned, because a shutdown
// must finish. Mounts are removed by operations like a domain's (PlanUnmount). Only the last step,
// reboot(2), cannot report an error.
//
// Controller performs the first request, and rejects a different one. The package knows no services
// or pods: machined passes functions that stop them (Deps).
package power
