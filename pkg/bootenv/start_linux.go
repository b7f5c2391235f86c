package bootenv

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// StartEnv is the environment variable with the start of init, in nanoseconds on the clock of the
// machine since its power-on (CLOCK_BOOTTIME), in decimal.
const StartEnv = "ORLOP_USERSPACE_START"

// Start returns the start of init from the value of StartEnv; the present time if it is no number.
func Start(value string) time.Time {
	began, err := strconv.ParseInt(value, 10, 64)
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(now.Nano() - began))
}
