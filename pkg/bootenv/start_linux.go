package bootenv

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// StartEnv is the environment variable with the time at which init started: decimal nanoseconds
// since the start of the kernel (CLOCK_BOOTTIME).
const StartEnv = "ORLOP_USERSPACE_START"

// Start returns the time at which init started. value is the value of the variable StartEnv. If it
// is not a number, Start returns the present time.
func Start(value string) time.Time {
	began, err := strconv.ParseInt(value, 10, 64)
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(now.Nano() - began))
}
