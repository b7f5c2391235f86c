package timesync

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is a clock that can be set. SystemClock is the machine's.
type Clock struct {
	Now  func() time.Time
	Step func(by time.Duration) error
	Slew func(by time.Duration) error
}

// SystemClock returns the kernel's real-time clock. Setting it needs CAP_SYS_TIME. The kernel
// copies the time to the hardware clock by itself while it is synchronised (CONFIG_RTC_SYSTOHC),
// which Step and Slew say it is.
func SystemClock() Clock { return Clock{Now: time.Now, Step: stepClock, Slew: slewClock} }

// maxSlew is how far the kernel's PLL goes in one call (MAXPHASE, include/linux/timex.h).
const maxSlew = 500 * time.Millisecond

func stepClock(by time.Duration) error {
	seconds := by / time.Second
	nanos := by % time.Second
	if nanos < 0 { // the kernel takes a negative time as negative seconds and positive nanoseconds
		seconds--
		nanos += time.Second
	}
	t := unix.Timex{Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO, Time: unix.Timeval{Sec: int64(seconds), Usec: int64(nanos)}}
	if _, err := unix.Adjtimex(&t); err != nil {
		return fmt.Errorf("clock: cannot step by %v: %w", by, err)
	}
	return synchronised(0)
}

func slewClock(by time.Duration) error { return synchronised(min(max(by, -maxSlew), maxSlew)) }

// synchronised gives the kernel's PLL an offset to work off and says that the clock is
// synchronised.
func synchronised(offset time.Duration) error {
	t := unix.Timex{
		Modes:  unix.ADJ_OFFSET | unix.ADJ_NANO | unix.ADJ_STATUS | unix.ADJ_TIMECONST | unix.ADJ_MAXERROR | unix.ADJ_ESTERROR,
		Offset: int64(offset), // nanoseconds, by ADJ_NANO
		Status: unix.STA_PLL,
		// Four seconds times 2^constant is how long the PLL takes; 64 s between rounds want a short
		// one.
		Constant: 2,
	}
	if _, err := unix.Adjtimex(&t); err != nil {
		return fmt.Errorf("clock: cannot slew by %v: %w", offset, err)
	}
	return nil
}

// horizon is how long after the build of the system a clock is believed. A clock chip without a
// battery says the year 70, which the kernel takes for 2070 when the firmware does not name the
// byte for the century (mach_get_cmos_time in arch/x86/kernel/rtc.c).
const horizon = 30 * 365 * 24 * time.Hour

// Plausible sets the clock to floor if it shows an earlier time, or one that is decades later, and
// reports whether it did. Call it first thing at boot with the time at which the system was built,
// and again with what ReadFloor returns.
func Plausible(floor time.Time) (bool, error) {
	return plausible(floor, time.Now(), func(t time.Time) error {
		tv := unix.NsecToTimeval(t.UnixNano())
		return unix.Settimeofday(&tv)
	})
}

func plausible(floor, now time.Time, set func(time.Time) error) (bool, error) {
	if !now.Before(floor) && now.Before(floor.Add(horizon)) {
		return false, nil
	}
	if err := set(floor); err != nil {
		return false, fmt.Errorf("clock: shows %s, which cannot be, and cannot be set: %w", now.UTC().Format(time.RFC3339), err)
	}
	return true, nil
}
