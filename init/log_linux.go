package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// level is a priority of the kernel log (linux/kern_levels.h). The console shows messages with a
// lower number than its console level; with "quiet" on the command line, it shows only critical
// messages.
type level int

const (
	critical level = 2
	warning  level = 4
	info     level = 6
)

// say writes a line to the kernel log, which appears on every console. Before /dev is mounted, it
// writes to the standard error, if the kernel has opened one.
func say(l level, format string, args ...any) {
	text := "orlop: init: " + strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, text)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "<%d>%s\n", l, text)
}

// stopwatch measures the parts of the boot. It uses CLOCK_MONOTONIC, because machined measures with
// the same clock.
type stopwatch struct {
	began, last time.Duration
	laps        strings.Builder
}

func (s *stopwatch) start() {
	s.began = monotonic()
	s.last = s.began
}

// lap ends a part of the boot and records its duration.
func (s *stopwatch) lap(name string) {
	now := monotonic()
	if s.laps.Len() > 0 {
		s.laps.WriteString(", ")
	}
	fmt.Fprintf(&s.laps, "%s %d", name, (now - s.last).Milliseconds())
	s.last = now
}

// String returns, for example, "took 310 ms (mounts 4, modules 250)".
func (s *stopwatch) String() string {
	return fmt.Sprintf("took %d ms (%s)", (s.last - s.began).Milliseconds(), s.laps.String())
}

// monotonic returns CLOCK_MONOTONIC: the time since the kernel started, without suspends. It
// returns 0 if the clock is unreadable.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
