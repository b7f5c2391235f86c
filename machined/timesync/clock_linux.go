package timesync

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is a clock that can be set. Step sets it at once, Slew makes it run faster or slower for a
// while. SystemClock returns the machine's clock.
type Clock struct {
	Now  func() time.Time
	Step func(by time.Duration) error
	Slew func(by time.Duration) error
}

// SystemClock returns the kernel's real-time clock. A process needs CAP_SYS_TIME to set the clock.
// Step and Slew also mark the clock as synchronized. While the clock has this mark, the kernel
// copies the time to the hardware clock (CONFIG_RTC_SYSTOHC).
func SystemClock() Clock { return Clock{Now: time.Now, Step: stepClock, Slew: slewClock} }

// maxSlew is the largest offset that the kernel's PLL accepts in one call (MAXPHASE,
// include/linux/timex.h).
const maxSlew = 500 * time.Millisecond

func stepClock(by time.Duration) error {
	seconds := by / time.Second
	nanos := by % time.Second
	// The kernel expects a negative time as negative seconds and positive nanoseconds.
	if nanos < 0 {
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

// synchronised passes an offset to the kernel's PLL and marks the clock as synchronized.
func synchronised(offset time.Duration) error {
	t := unix.Timex{
		Modes:  unix.ADJ_OFFSET | unix.ADJ_NANO | unix.ADJ_STATUS | unix.ADJ_TIMECONST | unix.ADJ_MAXERROR | unix.ADJ_ESTERROR,
		Offset: int64(offset), // nanoseconds, because of ADJ_NANO
		Status: unix.STA_PLL,
		// The time constant of the PLL is 4 s times 2^Constant. It has to be short, because rounds
		// can be only 64 s apart (minPoll).
		Constant: 2,
	}
	if _, err := unix.Adjtimex(&t); err != nil {
		return fmt.Errorf("clock: cannot slew by %v: %w", offset, err)
	}
	return nil
}

// horizon is the time after the build of the system for which a clock is plausible. A clock chip
// with an empty battery returns the year 70, which the kernel reads as 2070 if the firmware does
// not name the century byte (mach_get_cmos_time in arch/x86/kernel/rtc.c).
const horizon = 30 * 365 * 24 * time.Hour

// Plausible sets the clock to floor if the clock is earlier than floor, or later than floor by more
// than horizon. It returns true if it has set the clock. The caller calls it at boot with the build
// time of the system, and again with the result of ReadFloor.
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
		return false, fmt.Errorf("clock: shows the impossible time %s, and cannot be set: %w", now.UTC().Format(time.RFC3339), err)
	}
	return true, nil
}

// SetClock raises the floor to a time that has certainly passed. It sets the clock to this time if
// the clock is not plausible (Plausible). The argument what describes the time in the console line.
func (p *Floor) SetClock(floor time.Time, what string, console func(line string)) error {
	before := time.Now()
	moved, err := Plausible(floor)
	if moved {
		direction := "behind"
		if before.After(floor) {
			direction = "ahead"
		}
		console(fmt.Sprintf("the clock was %s, at %s; set it to %s, %s", direction, before.UTC().Format(time.RFC3339), what, floor.UTC().Format(time.RFC3339)))
	}
	p.Raise(floor, time.Now())
	return err
}
