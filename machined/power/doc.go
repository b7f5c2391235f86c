// Package power takes the machine down in order, hears when somebody wants it down (signals to PID
// 1, the power button), and feeds the hardware watchdog while machined is well.
//
// Going down is a list of steps with a deadline each (Plan); a step that is late is left behind,
// because a machine that was told to go down must go down. What is mounted is taken apart by
// operations like a domain's (PlanUnmount). Only the last step, reboot(2), cannot fail in a way
// that anyone would notice.
//
// The package does not know what services or pods are: the caller passes functions that end them.
package power
